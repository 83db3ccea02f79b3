"""Text corpora in files, prepared folders, and training batches drawn from them."""

import copy
import hashlib
import json
import os
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyarr.text import CharTokenizer, Corpus, byte_tokenizer, corpus, prepared, sources, train_bpe
from polyarr.text.prepared import open_prepared, prepare
from polyarr.text.sources import find_files
from polyarr.text.tokens import TokenFile
from polyarr.training.data import check_length, prefetched, shuffled_windows

TEXT = "the quick brown fox jumps over the lazy dog; naïve 日本\n" * 20
BPE = train_bpe([TEXT], 300)


def texts_of(files, **settings):
    """Return the texts in files."""
    found = [""]
    for piece in sources.read_pieces(files, **settings):
        found[-1:] = [found[-1], ""] if piece is None else [found[-1] + piece]
    assert found.pop() == ""
    return found


# ---- files -------------------------------------------------------------------------------------------------------


def test_files_folders_and_patterns(tmp_path):
    for name in ("b.txt", "a.md", "sub/c.jsonl", "sub/d.py", ".hidden/e.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "empty.txt").write_text("")
    assert find_files([tmp_path]) == [tmp_path / name for name in ("a.md", "b.txt", "sub/c.jsonl")]
    assert find_files([tmp_path / "*.txt", tmp_path]) == [
        tmp_path / name for name in ("b.txt", "empty.txt", "a.md", "sub/c.jsonl")
    ]
    assert find_files([tmp_path / "**/*.py"]) == [tmp_path / "sub/d.py"]
    assert find_files([tmp_path / "sub/**"]) == [tmp_path / "sub/c.jsonl", tmp_path / "sub/d.py"]
    assert find_files([tmp_path / ".hidden/*"]) == [tmp_path / ".hidden/e.txt"]
    for name in "pq":  # 2 ** 40 paths, to whoever follows them
        (tmp_path / "sub" / name).symlink_to(".")
    assert find_files([tmp_path / "**/*.py"]) == [tmp_path / "sub/d.py"] == find_files([tmp_path / "sub/**/d.*"])


def test_files_that_are_not_there_or_have_no_end_are_named(tmp_path):
    for name in ("none.txt", "*.none"):
        with pytest.raises(FileNotFoundError) as error:
            find_files([tmp_path / name])
        assert error.value.filename == str(tmp_path / name)
    with pytest.raises(ValueError, match=r": no file in this folder ends in \.txt, \.md, \.jsonl, \.ndjson; "):
        find_files([tmp_path])
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", tmp_path / "pipe"):
        with pytest.raises(ValueError, match=rf"^{path}: a device, pipe or socket; it must be a regular file$"):
            find_files([path])


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(sources, "PIECE", 7)
    monkeypatch.setattr(sources, "_MAX_SEARCH", 40)


def test_text_is_utf8_with_one_kind_of_line_end(tmp_path, small_pieces):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffnaïve\r\ntext, \rlong\r\n\r\n日本日本日本\r".encode())
    assert texts_of([path]) == ["naïve\ntext, \nlong\n\n日本日本日本\n"]


def test_what_is_wrong_with_a_text_is_said(tmp_path, small_pieces):
    path = tmp_path / "a.txt"
    for data, said in [
        (b"", "the file is empty"),
        (b"abc\xff", "not UTF-8, byte 0xff at position 3"),
        (b"\xef\xbb\xbfabcdefghi\xe6\x97jk", "not UTF-8, byte 0xe6 at position 12"),
        (b"abcdefgh\xe6\x97", "not UTF-8, byte 0xe6 at position 8"),
    ]:
        path.write_bytes(data)
        with pytest.raises(ValueError, match=rf"^{path}: {said}$"):
            texts_of([path])


def test_each_of_the_json_lines_is_a_text(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one\\n", "id": 1}\n\n{"text": ""}\n{"text": "日本", "body": "other"}')
    assert texts_of([path]) == ["one\n", "", "日本"]
    path.write_text('{"body": "other"}\n')
    assert texts_of([path], field="body") == ["other"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"body": "x"}', "it must be a JSON object with a text as 'text'; it has 'body'; a file of con"),
        ('["text"]', "it must be a JSON object"),
        ('{"text": 3}', "it must be a JSON object"),
        ("{", "Expecting property name"),
        ('{"text": "\\ud800"}', "'utf-8' codec can't encode character"),
        ("[" * 100_000, "maximum recursion depth"),
        ("\udcff", "'utf-8' codec can't decode byte 0xff"),
    ],
)
def test_a_line_that_is_none_is_named(tmp_path, line, said):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "good"}\n' + line, errors="surrogateescape")
    with pytest.raises(ValueError, match=rf"^{path}: line 2: ") as error:
        texts_of([path])
    assert said in str(error.value) and len(str(error.value)) < 500


@given(text=st.text(alphabet="ab Z1.,'\n\té日\u00a0") | st.text())
@pytest.mark.parametrize("longest", [40, 10**6])
def test_pieces_have_the_tokens_of_the_whole(monkeypatch, text, longest):
    """Split at any boundary that allows it; without one, nothing is lost."""
    monkeypatch.setattr(sources, "PIECE", 7)
    monkeypatch.setattr(sources, "_MAX_SEARCH", longest)
    *pieces, end = sources.pieces_of(text)
    assert "".join(pieces) == text and end is None
    if longest > len(text):
        assert [t for piece in pieces for t in BPE.encode(piece).tolist()] == BPE.encode(text).tolist()


# ---- corpora -----------------------------------------------------------------------------------------------------


def test_a_corpus_of_files_is_that_of_its_text(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text(TEXT)
    for tokenizer in (None, BPE):
        whole, read = Corpus.of_text(TEXT, tokenizer), Corpus.of_files([path], tokenizer)
        assert whole.digest == read.digest == hashlib.sha256(TEXT.encode()).hexdigest()
        assert np.array_equal(whole.train, read.train) and np.array_equal(whole.validation, read.validation)
        assert whole.tokenizer.to_dict() == read.tokenizer.to_dict() and whole.train.dtype == np.uint16
    tokens = np.concatenate([whole.train, whole.validation])
    assert BPE.decode(tokens[:-1]) == TEXT and tokens[-1] == BPE.end
    assert len(Corpus.of_text(TEXT).train) == int(0.9 * len(TEXT))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_is_named(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text(TEXT)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: open("/dev/full", "r+b", buffering=0))
    with pytest.raises(OSError, match="No space left on device") as error:
        Corpus.of_files([tmp_path / "a.txt"])
    assert error.value.filename == tempfile.gettempdir()


def test_texts_that_are_parted_elsewhere_are_another_corpus(tmp_path):
    digests = set()
    for parts in (["ab", "c"], ["a", "bc"], ["abc"], ["abc", ""], ["", "abc"]):
        (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": part}) + "\n" for part in parts))
        digests.add(Corpus.of_files([tmp_path / "a.jsonl"]).digest)
    assert len(digests) == 4  # an empty text at the end is ignored


def test_validation_begins_with_a_text_if_one_begins_soon():
    tokens = np.arange(1000)
    assert corpus.validation_start(tokens, 0.1, None) == corpus.validation_start(tokens, 0.1, 899) == 900
    assert corpus.validation_start(tokens, 0.1, 900) == 901 and corpus.validation_start(tokens, 0.1, 909) == 910
    assert corpus.validation_start(tokens, 0.1, 910) == 900 and corpus.validation_start(tokens, 0.5, 520) == 521


@pytest.mark.parametrize("tokenizer", [None, CharTokenizer("a")])
def test_an_empty_text_makes_no_corpus(tokenizer):
    with pytest.raises(ValueError, match=r"^the text is empty; there must be at least one character$"):
        Corpus.of_text("", tokenizer)


def test_a_corpus_that_is_too_short_says_how_long_it_must_be():
    for length in (40, 72):
        said = rf"^a.txt: {int(0.9 * length)} characters to train on and .* there must be at least 65 and 2$"
        with pytest.raises(ValueError, match=said):
            check_length("a.txt", Corpus.of_text("x" * length), 64)
    check_length("a.txt", Corpus.of_text("x" * 73), 64)


# ---- prepared folders --------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in TEXT.splitlines()))
    return [tmp_path / "a.jsonl"]


def test_prepared_tokens_are_those_of_the_files(tmp_path, files):
    done = []
    manifest = prepare(files, tmp_path / "out", BPE, progress=done.append)
    found, read = open_prepared(tmp_path / "out"), Corpus.of_files(files, BPE)
    assert isinstance(found.train, TokenFile) and found.digest == read.digest
    assert np.array_equal(found.train, read.train) and np.array_equal(found.validation, read.validation)
    assert found.train[-1] == BPE.end and found.tokenizer.to_dict() == BPE.to_dict()
    tokens = manifest["tokens"]
    raw = (tmp_path / "out" / tokens["file"]).read_bytes()
    assert (manifest["texts"], manifest["bytes"]) == (20, len(TEXT.encode()) - 20) and sum(done) == manifest["bytes"]
    assert (tokens["count"], tokens["dtype"]) == (len(raw) // 2, "uint16")
    assert tokens["sha256"] == hashlib.sha256(raw).hexdigest()


def test_characters_and_large_vocabularies_are_prepared(tmp_path, files, monkeypatch):
    prepare(files, tmp_path / "out", validation=0.5)
    found = open_prepared(tmp_path / "out")
    assert found.tokenizer.characters == "".join(sorted(set(TEXT) - {"\n"}))
    assert len(found.validation) == len(found.train)
    assert found.digest != Corpus.of_files(files).digest  # the split differs
    monkeypatch.setattr(corpus, "_SMALL", 299)
    assert prepare(files, tmp_path / "large", BPE)["tokens"]["dtype"] == "uint32"
    assert open_prepared(tmp_path / "large").train.dtype == np.uint32


def test_wrong_wishes_leave_nothing(tmp_path, files):
    for wrong, said in [
        ({"validation": 1.0}, "prepare: validation is 1.0; it must be between 0 and 1"),
        ({"field": "body"}, "a.jsonl: line 1: it must be"),
        ({"tokenizer": Corpus.of_text("abc").tokenizer}, r"\.\w+: encode: not in the vocabulary of 3 characters"),
        ({"validation": 1e-9}, r"prepare: \d+ tokens; there must be some to train on and some to validate with"),
    ]:
        with pytest.raises(ValueError, match=said):
            prepare(files, tmp_path / "out", **{"tokenizer": BPE, **wrong})
        assert not (tmp_path / "out").exists()


def test_an_unknown_character_is_reported_with_its_file(tmp_path):
    known = Corpus.of_text("abc").tokenizer
    for name, text in (("a.txt", "abc" * 50), ("b.txt", "ab" * 50 + "é"), ("c.txt", "éd")):
        (tmp_path / name).write_text(text)
    paths = [tmp_path / name for name in ("a.txt", "b.txt", "c.txt")]
    said = r"b\.txt: encode: not in the vocabulary of 3 characters: '\w'"
    with pytest.raises(ValueError, match=said):
        Corpus.of_files(paths, known)
    with pytest.raises(ValueError, match=said):
        prepare(paths, tmp_path / "out", known)


class Crash(BaseException):
    """An exception that no handler catches."""


def crashing(monkeypatch, at):
    """Make the n-th rename fail as if the process had died: nothing is cleaned up."""
    left = [at]

    def counted(function):
        def call(*args, **settings):
            left[0] -= 1
            if left[0] <= 0:
                raise Crash
            return function(*args, **settings)

        return call

    for name in ("replace", "unlink", "rmdir", "fsync"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))


@pytest.mark.parametrize("before", [False, True], ids=["new", "replaced"])
def test_a_crash_leaves_the_folder_before_or_the_new_one(tmp_path, files, before):
    """Leftovers are recognized and removed by the next preparation."""
    seen, whole = set(), Corpus.of_files(files, BPE).digest
    for at in range(1, 100):
        folder = tmp_path / f"out{at}"
        other = prepare(files, folder, byte_tokenizer(), validation=0.5)["digest"] if before else None
        with pytest.MonkeyPatch.context() as patch:
            crashing(patch, at)
            try:
                prepare(files, folder, BPE)
                ended = True
            except Crash:
                ended = False
        assert not prepared.has_strangers(folder)
        seen.add(open_prepared(folder).digest if prepared.is_prepared(folder) else None)
        assert seen <= {other, whole}
        prepare(files, folder, BPE)
        assert len(list(folder.iterdir())) == 3 and open_prepared(folder).digest == whole
        if ended:
            break
    assert seen == {other, whole} and at > 8


def test_what_is_not_of_a_preparation_is_a_stranger(tmp_path, files):
    assert not prepared.has_strangers(tmp_path / "none") and prepared.has_strangers(tmp_path)


@pytest.fixture
def folder(tmp_path, files):
    prepare(files, tmp_path / "out", BPE)
    return tmp_path / "out"


def refused(folder):
    """Return the one-line error of opening a damaged folder; None if it opens."""
    try:
        open_prepared(folder)
    except ValueError as error:
        assert str(error).startswith(f"{folder}: ") and "\n" not in str(error) and len(str(error)) < 700
        return str(error)
    return None


def places(value, path=()):
    """Return the paths of all values in a JSON value."""
    yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*path, key))


VALUES = (..., None, True, "", "x", "../a", "a" * 100_000, -1, 0, 1.5, 3, 10**30, 1e308, [], {}, {"x": 1})
FREE = {("polyarr",), ("texts",), ("bytes",), ("validation", "part"), ("validation", "first"), ("sources", "files")}


def test_no_change_of_a_manifest_is_a_raw_error(folder):
    whole = json.loads((folder / "manifest.json").read_text())
    for path in places(whole):
        for value in VALUES:
            new = copy.deepcopy(whole)
            at = new
            for key in path[:-1]:
                at = at[key]
            if not path:
                new = {} if value is ... else value
            elif value is ...:
                del at[path[-1]]
            else:
                at[path[-1]] = value
            (folder / "manifest.json").write_text(json.dumps(new))
            is_free = new == whole or path in FREE or "first" in path
            assert refused(folder) or is_free, (path, value)


def test_damaged_files_of_a_folder_are_named(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    tokens, tokenizer = (folder / manifest[name]["file"] for name in ("tokens", "tokenizer"))
    for path, said in [(tokens, "bytes, which are not its"), (tokenizer, "is not the tokenizer of these tokens")]:
        whole = path.read_bytes()
        path.write_bytes(whole[:-2])
        assert said in refused(folder)
        path.unlink()
        assert "No such file" in refused(folder)
        path.write_bytes(whole[:-2] + bytes([whole[-2] ^ 1]) + whole[-1:])
        assert (said if path is tokenizer else "its checksum is another") in refused(folder)
        path.write_bytes(whole)
    assert refused(folder) is None
    for text in ("", "{", "[" * 100_000, "null"):
        (folder / "manifest.json").write_text(text)
        assert refused(folder)


def test_tokens_of_any_size_are_looked_at_when_that_is_asked_for(folder, monkeypatch):
    monkeypatch.setattr(prepared, "CHECKED", 10)
    tokens = next(folder.glob("tokens-*"))
    whole = tokens.read_bytes()
    tokens.write_bytes(whole[:2] + whole[4:6] + whole[2:4] + whole[6:])  # all of them tokens, in another order
    assert refused(folder) is None
    with pytest.raises(ValueError, match=r"^.*: damaged; prepare it again: tokens-.* its checksum is another$"):
        open_prepared(folder, check=True)
    tokens.write_bytes(whole)
    assert len(open_prepared(folder, check=True).train) > 0


# ---- windows -----------------------------------------------------------------------------------------------------


@given(length=st.integers(1, 9), tokens=st.integers(10, 200), count=st.integers(1, 7), seed=st.integers(0, 2**40))
def test_windows_are_shuffled_pieces_each_of_which_comes_once(length, tokens, count, seed):
    tokens = np.arange(tokens, dtype=np.uint16)
    cuts = max((len(tokens) - 1) // length - 1, 1)  # number of windows in an epoch
    drawn = np.concatenate([shuffled_windows(tokens, length, count, seed, draw) for draw in range(2 * cuts)])
    assert drawn.shape[1] == length + 1 and drawn.dtype == np.int32 and (np.diff(drawn, axis=1) == 1).all()
    for epoch in range(2):
        starts = np.sort(drawn[epoch * cuts : (epoch + 1) * cuts, 0])
        assert (np.diff(starts) == length).all()


def test_windows_are_a_function_of_seed_and_draw():
    tokens = np.arange(5000)
    first = shuffled_windows(tokens, 6, 100, seed=1, draw=2)
    assert np.array_equal(first, shuffled_windows(tokens, 6, 100, seed=1, draw=2))
    for seed, draw in ((1, 3), (2, 2)):
        assert not np.array_equal(first, shuffled_windows(tokens, 6, 100, seed, draw))
    order = shuffled_windows(tokens, 6, 800, 1, 0)[:, 0]
    assert abs(np.corrcoef(order, np.arange(800))[0, 1]) < 0.1 and abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.1


def test_every_token_is_seen_and_predicted_in_time():
    drawn = np.concatenate([shuffled_windows(np.arange(50), 6, 10, 1, draw) for draw in range(20)])
    assert set(drawn[:, :-1].ravel()) == set(range(49)) and set(drawn[:, 1:].ravel()) == set(range(1, 50))


def test_what_several_processes_draw_is_what_one_draws():
    """A step with two accumulated parts, or one part on each of two processes."""
    tokens = np.arange(3000)
    one = shuffled_windows(tokens, 8, 12, 1, 5)
    assert np.array_equal(one, np.concatenate([shuffled_windows(tokens, 8, 6, 1, draw) for draw in (10, 11)]))


def test_a_draw_may_take_many_epochs():
    tokens = np.arange(30)
    found = shuffled_windows(tokens, 4, 2400, 1, 2)
    assert np.array_equal(found, np.concatenate([shuffled_windows(tokens, 4, 5, 1, draw) for draw in range(960, 1440)]))


def test_windows_of_a_corpus_larger_than_memory_take_no_list_of_them():
    tokens = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint16), (2**42,), (0,))
    assert shuffled_windows(tokens, 1024, 4, 1, 10**9).shape == (4, 1025)


# ---- a thread that makes them beforehand ---------------------------------------------------------------------------


def working():
    """Return the threads that prepare batches."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("polyarr-windows")]


def test_what_is_made_beforehand_comes_in_order():
    with prefetched(lambda step: step * step, 3) as following:
        assert [following() for _ in range(5)] == [9, 16, 25, 36, 49] and working()
    assert not working()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_the_thread_ends_with_its_block(error):
    with pytest.raises(error), prefetched(lambda step: step, 0) as following:
        following()
        raise error
    assert not working()


def test_what_a_thread_raises_is_raised_where_it_is_asked_for():
    with prefetched(lambda step: 1 // (2 - step), 0) as following:
        assert [following(), following()] == [0, 1]
        with pytest.raises(ZeroDivisionError):
            following()
    assert not working()
