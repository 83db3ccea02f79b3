"""Module, the base class of layers: a tree of arrays with a call, as a plain Python object."""

import inspect
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any, Self

from polyarr import creation, ops, tree
from polyarr.core.array import Array, spec_of
from polyarr.core.backend import Backend
from polyarr.core.errors import DtypeError, ShapeError
from polyarr.core.keywords import FOREIGN, explained, refuse_foreign
from polyarr.core.names import answer_attribute
from polyarr.core.spec import FLOATS, Spec, as_dtype, described

_SETTINGS = {bool, int, float, str, type(None)}  # types that are never children
_SHOWN = 3  # names listed in an error


class Module(tree.Versioned):
    """Base class of layers and models: a tree of arrays with a call.

    Attributes that are arrays, Modules, or lists, tuples and dicts that hold one, are its children, in the order of
    assignment; every other attribute is configuration. Subclasses assign them in `__init__` and define `__call__`.

    A Module is a tree: gradients with respect to it, and tree.map over it, return Modules of the same structure. Only
    arrays stay children, so to map parameters to something else, map over parameters().

    Compiled functions notice attributes that are assigned, not those that are changed through `vars(module)`.

    Attributes:
        training: Whether layers such as Dropout behave as in training; see train and eval.
        frozen: Whether the arrays are not trained; see freeze. Modules inside have their own.
        is_state: Whether the arrays are no parameters, such as running statistics: never trained or cast.
        is_gradient: Whether the arrays are gradients: set in the result of a gradient transform.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import nn
        >>> class Scale(nn.Module):
        ...     def __init__(self, n):
        ...         self.factor = pa.ones(n)
        ...     def __call__(self, x):
        ...         return x * self.factor
        >>> list(Scale(3).named_parameters())
        ['factor']
    """

    training = True
    frozen = False
    is_state = False
    is_gradient = False

    if not TYPE_CHECKING:  # to a type checker, every attribute would seem to be there
        __getattr__ = answer_attribute("Module")

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            if kwargs and not FOREIGN.isdisjoint(kwargs):
                refuse_foreign(cls, kwargs)
            if (args or kwargs) and cls.__init__ is object.__init__:
                raise TypeError(f"{cls.__name__}() takes no arguments")
            return super().__new__(cls)

        __new__.__signature__ = inspect.Signature([inspect.Parameter("cls", inspect.Parameter.POSITIONAL_ONLY)])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the layer; every Module defines its own."""
        if hasattr(type(self), "forward"):
            raise TypeError(f"{type(self).__name__}: it defines forward and no __call__; rename forward to __call__")
        raise TypeError(f"{type(self).__name__}: it defines no __call__, so it cannot be called")

    # ---- the tree --------------------------------------------------------------------------------------------

    def tree_children(self) -> dict[str, Any]:
        """Return the attributes that are children, by name."""
        found = vars(self).items()  # runs at every call of a compiled function, so plain settings are skipped by type
        return {name: v for name, v in found if type(v) is Array or (type(v) not in _SETTINGS and _is_child(v))}

    def tree_rebuild(self, children: dict[str, Any]) -> Self:
        """Return a shallow copy with other children."""
        new = object.__new__(type(self))
        object.__setattr__(new, "__dict__", vars(self) | children)  # a subclass may have its own __setattr__
        return new

    def parameters(self) -> dict[str, Any]:
        """Return the arrays as nested dicts and lists, which tree.map takes in place of the Module."""
        return {name: _plain(child) for name, child in self.tree_children().items()}

    def named_parameters(self, *, only_trainable: bool = False) -> dict[str, Array]:
        """Return the arrays by dotted name, such as "blocks.0.att.qkv.weight".

        Args:
            only_trainable: Whether to leave out those of frozen Modules.

        Returns:
            Dict from dotted names to arrays, in order.
        """
        found = tree.trainable(self) if only_trainable else tree.by_name(self)
        return {name: leaf for name, leaf in found.items() if _is_array(leaf)}

    def num_parameters(self, *, only_trainable: bool = False) -> int:
        """Return the number of elements of all arrays; a quantized weight counts as the weight that it stands for.

        Args:
            only_trainable: Whether to leave out those of frozen Modules.

        Returns:
            int.
        """
        count = sum(leaf.size for leaf in self.named_parameters(only_trainable=only_trainable).values())
        return count if only_trainable else count + sum(each._more_parameters() for each in self.modules())

    def _more_parameters(self) -> int:
        """Return how many more parameters the arrays of this Module stand for than they have elements."""
        return 0

    # ---- saving and loading ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Array]:
        """Return named_parameters(), which load_parameters takes."""
        return self.named_parameters()

    @explained
    def load_parameters(self, named: Mapping[str, Any]) -> Self:
        """Replace every array, in place, by the array of its dotted name.

        Dtype and backend stay as they are; nothing is replaced unless everything fits.

        Args:
            named: Mapping from dotted names to arrays of polyarr or NumPy; or a tree, as polyarr.load returns it.

        Returns:
            The Module itself.

        Raises:
            ValueError: A name is missing or unknown.
            ShapeError: An array has another shape.
        """
        _check_mapping("load_parameters", named)
        own = self.named_parameters()
        settings = tree.by_name(self).keys() - own.keys()  # numbers in a dict with arrays, which polyarr.save saves
        named = {name: value for name, value in tree.by_name(dict(named)).items() if name not in settings}
        if own.keys() != named.keys():
            missing, unknown = [n for n in own if n not in named], [n for n in named if n not in own]
            wrong = "; ".join(_listed("missing", missing) + _listed("unknown", unknown))
            foreign = any(name.endswith("running_mean") for name in unknown)
            instead = "; docs/images.md converts a state_dict of PyTorch" if foreign else ""
            raise ValueError(f"load_parameters: {wrong}; the names must be those of named_parameters(){instead}")
        for name, leaf in own.items():
            if (shape := tuple(named[name].shape)) != leaf.shape:
                is_moved = len(shape) > 2 and (shape[0], *shape[2:], shape[1]) == leaf.shape
                instead = "; move axis 1, the channels, of all filters of PyTorch to the end" if is_moved else ""
                raise ShapeError(f"load_parameters: {name} is {list(shape)}; it must be {list(leaf.shape)}{instead}")
        found = {name: _like(leaf, named[name]) for name, leaf in own.items()}
        _assign(self, (), found)
        return self

    def to(self, backend: str | Backend) -> Self:
        """Return the Module on another backend.

        Args:
            backend: Backend or its name.

        Returns:
            Module with copies of the arrays.
        """
        return tree.map(lambda leaf: leaf.to(backend) if type(leaf) is Array else leaf, self)

    def astype(self, dtype: Any) -> Self:
        """Return the Module with its floating-point parameters in another dtype; gradients keep the original dtype.

        A model can so compute in float16 or bfloat16 while its parameters, and the state of an optimizer, stay float32:
        value_and_grad(lambda m: loss_of(m.astype(bfloat16), batch))(model).

        Args:
            dtype: Floating-point dtype or its name.

        Returns:
            Module with converted arrays.

        Raises:
            DtypeError: dtype is not floating-point.
        """
        due = as_dtype(dtype)
        if due not in FLOATS:
            raise DtypeError(f"Module.astype: dtype is {due.name}; it must be floating-point")
        leaves = tree.leaves(self)
        alike = defaultdict[Any, list[int]](list)  # cast at once; tracked and untracked arrays apart
        for i, (leaf, is_cast) in enumerate(zip(leaves, _are_cast(self, due), strict=True)):
            if is_cast:
                alike[type(leaf), leaf.dtype, getattr(leaf, "node", None) is None].append(i)
        for places in alike.values():
            for i, found in zip(places, ops.astype_all([leaves[i] for i in places], dtype=due), strict=True):
                leaves[i] = found
        return tree.unflatten(self, leaves)

    def with_arrays(self, named: Mapping[str, Array]) -> Self:
        """Return the Module with other arrays at some dotted names, such as those of nn.observing.

        Args:
            named: Mapping from dotted names to arrays.

        Returns:
            Module that shares the other arrays.

        Raises:
            ValueError: A name is unknown.
            ShapeError: An array has another shape or dtype.
        """
        _check_mapping("with_arrays", named)
        leaves, own = tree.by_name(self), self.named_parameters()
        if unknown := [name for name in named if name not in own]:
            raise ValueError(f"with_arrays: {_listed('unknown', unknown)[0]}; names must be of named_parameters()")
        for name, a in named.items():
            if spec_of(a) != spec_of(leaves[name]):
                raise ShapeError(f"with_arrays: {name} is {spec_of(a)}; it must be {spec_of(leaves[name])}")
        return tree.unflatten(self, {**leaves, **named}.values())

    def copy(self) -> Self:
        """Return another Module with the same arrays; changes of one do not change the other."""
        return tree.map(lambda leaf: leaf, self)

    # ---- training or not -------------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> Self:
        """Switch this Module and all inside it to training, in which dropout works.

        Args:
            mode: False for evaluation.

        Returns:
            The Module itself.
        """
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """Switch this Module and all inside it to evaluation, in which dropout does nothing; return the Module."""
        return self.train(False)

    def freeze(self, mode: bool = True) -> Self:
        """Freeze this Module and all inside it: their arrays have no gradients, and optimizers do not change them.

        Modules inside may be unfrozen afterwards: model.freeze(); model.out_head.unfreeze() trains only the head.

        Args:
            mode: False to unfreeze.

        Returns:
            The Module itself.
        """
        for module in self.modules():
            module.frozen = mode or module.is_state
        return self

    def unfreeze(self) -> Self:
        """Have this Module and all inside it trained again; return the Module."""
        return self.freeze(False)

    def modules(self) -> Iterator["Module"]:
        """Iterate over this Module and every Module inside it."""
        return (module for _, module in named_modules(self))

    def __repr__(self) -> str:
        return "\n".join(_described("", self))


def _are_cast(node: Any, dtype: Any) -> list[bool]:
    """Return for every leaf, in order, whether it is cast: floating-point arrays, without those of is_state Modules."""
    children = tree.children(node)
    if children is None:
        return [isinstance(node, (Array, Spec)) and node.dtype in FLOATS and node.dtype != dtype]
    if getattr(node, "is_state", False):
        return [False] * len(tree.leaves(node))
    return [is_cast for child in children.values() for is_cast in _are_cast(child, dtype)]


def _is_array(value: Any) -> bool:
    return isinstance(value, (Array, Spec))


def _is_child(value: Any) -> bool:
    if isinstance(value, (Array, Module, Spec)):
        return True
    if isinstance(value, (list, tuple)):
        return any(map(_is_child, value))
    return isinstance(value, dict) and any(map(_is_child, value.values()))


def _plain(child: Any) -> Any:
    if isinstance(child, Module):
        return child.parameters()
    found = tree.children(child)
    return child if found is None else tree.rebuild(child, {name: _plain(c) for name, c in found.items()})


def _listed(what: str, names: list[str]) -> list[str]:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return [f"{what} {', '.join(names[:_SHOWN])}{more}"] if names else []


def _like(leaf: Any, value: Any) -> Array:
    backend = leaf.backend if type(leaf) is Array else None
    return creation.asarray(value, dtype=leaf.dtype, device=backend)


def _check_mapping(method: str, named: Any) -> None:
    if not isinstance(named, Mapping):
        raise TypeError(f"{method}: named is {described(named)}; it must be a mapping from dotted names to arrays")


def _assign(node: Any, path: tuple, found: dict[str, Array]) -> Any:
    """Return the node with the arrays of `found`; Modules keep their identity."""
    children = tree.children(node)
    if children is None:
        return found.get(".".join(map(str, path)), node)
    new = {name: _assign(child, (*path, name), found) for name, child in children.items()}
    if not isinstance(node, Module):
        return tree.rebuild(node, new)
    vars(node).update(new)
    tree.note_change()
    return node


def named_modules(node: Any, path: tuple = ()) -> Iterator[tuple[str, Module]]:
    """Iterate over (path, Module) of a tree, outer ones first; the path of the tree itself is ""."""
    if isinstance(node, Module):
        yield ".".join(map(str, path)), node
    for name, child in (tree.children(node) or {}).items():
        yield from named_modules(child, (*path, name))


# ---- repr ----------------------------------------------------------------------------------------------------


def _described(name: str, value: Any) -> list[str]:
    """Return the lines of a child: an array by its Spec, a Module with its configuration, equal neighbors once."""
    label = f"{name}: " if name else ""
    if isinstance(value, (Array, Spec)):
        return [f"{label}{value.spec if type(value) is Array else value}"]
    children = tree.children(value)
    if not children and not isinstance(value, Module):
        return [f"{label}{value!r}"]
    children = children or {}
    lines = [line for child, count in _distinct(children) for line in _counted(child, count)]
    if not isinstance(value, Module):
        return [f"{label}[", *(f"  {line}" for line in lines), "]"]
    settings = [f"{k}={v!r}" for k, v in vars(value).items() if k not in children and not hasattr(Module, k)]
    head = f"{label}{type(value).__name__}({', '.join(settings)}"
    if all(isinstance(child, (Array, Spec)) for child in children.values()):
        return [head + ", " * bool(settings and lines) + ", ".join(lines) + ")"]
    return [head, *(f"  {line}" for line in lines), ")"]


def _distinct(children: dict[Any, Any]) -> Iterator[tuple[list[str], int]]:
    """Return the descriptions of children, with the number of equal neighbors; only list members can be equal."""
    described = (_described(name if isinstance(name, str) else "", child) for name, child in children.items())
    return ((lines, len(list(same))) for lines, same in groupby(described))


def _counted(lines: list[str], count: int) -> list[str]:
    return lines if count == 1 else [f"{count} x {lines[0]}", *lines[1:]]
