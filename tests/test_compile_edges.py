"""polyarr.compile where Python shows through: captures that change, NumPy's numbers, copies, other dicts."""


import pytest

import polyarr as pa
from polyarr.testing.compare import bits


def test_containers_of_captures_may_not_change_and_stay_as_they_were(backend):
    layer, held = pa.nn.Linear(2, 2), {"w": pa.ones((2,)), "more": [pa.ones((2,))]}
    weight, w = layer.weight, held["w"]

    def in_a_dict(x):
        held["w"] = held["w"] * x
        return held["w"]

    def in_a_list(x):
        held["more"].append(x)
        return x

    def in_a_module(x):
        layer.weight = layer.weight * x
        return layer(x)

    def fails(x):
        in_a_module(x)
        raise ValueError("stop")

    for fn, captures in ((in_a_dict, held), (in_a_list, held), (in_a_module, {"m": layer})):
        compiled = pa.compile(fn, captures=captures)
        for _ in range(2):
            with pytest.raises(pa.CaptureError, match=rf"^compile: {fn.__name__} changes what is in captures="):
                compiled(pa.ones((2,)))
    with pytest.raises(ValueError, match="stop"):
        pa.compile(fails, captures=layer)(pa.ones((2,)))
    assert layer.weight is weight and held["w"] is w and len(held["more"]) == 1
    assert bits(layer(pa.ones((1, 2)))) and held["w"].tolist() == [1, 1]
