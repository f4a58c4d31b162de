"""The cipher and the normal numbers of a GPU: on one, or in Triton's interpreter, in a process of its own."""

from __future__ import annotations

import copy
import math
import os
import pickle
import warnings

import numpy as np
import pytest
import torch

from hush.privacy import chacha20
from hush.privacy.chacha20 import ChaCha20Rng
from hush.privacy.noise import Secure
from hush.types import HushError
from tests.support import normal_checks as checks
from tests.support.interpreter import CUDA, DEVICE, INTERPRETED, check_interpreted, on_a_gpu, on_either, runs_itself

# RFC 8439: 2.3.2, and A.1 numbers 1 to 5; key, counter, nonce and key stream.
PUBLISHED = (
    (
        bytes(range(32)), 1, "000000090000004a00000000",
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e",
    ),
    (
        bytes(32), 0, "000000000000000000000000",
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    ),
    (
        bytes(32), 1, "000000000000000000000000",
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    ),
    (
        bytes(31) + b"\1", 1, "000000000000000000000000",
        "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
        "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0",
    ),
    (
        b"\0\xff" + bytes(30), 2, "000000000000000000000000",
        "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
        "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096",
    ),
    (
        bytes(32), 0, "000000000000000000000002",
        "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7"
        "8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d",
    ),
)  # fmt: skip


@pytest.mark.interpreter
@runs_itself()
def test_the_interpreter_agrees() -> None:
    """All tests of this file, with Triton's kernels interpreted."""
    check_interpreted(__file__)


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter takes hardly longer for many lanes than for few."""
    if INTERPRETED:
        monkeypatch.setattr(chacha20, "LANES", 1 << 11)


@pytest.fixture
def wider(wide: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same where many numbers are drawn."""
    if INTERPRETED:
        monkeypatch.setattr(chacha20, "LANES", 1 << 14)


def words_of(key: bytes, draw: int, domain: int, blocks: int) -> np.ndarray:
    """The cipher's words in its own order, blocks x 16."""
    from hush.privacy.chacha20_kernels import WORDS

    out = torch.empty(-(-blocks // chacha20.LANES) * 16 * chacha20.LANES, dtype=torch.int32, device=DEVICE)
    there = torch.frombuffer(bytearray(key), dtype=torch.int32).to(DEVICE)
    number = torch.tensor([draw], device=DEVICE)
    grid = (out.numel() // (16 * chacha20.LANES),)
    WORDS[grid](out, there, number, number, out.numel(), DOMAIN=domain, LANES=chacha20.LANES, TABLE=False, num_warps=4)
    return out.view(-1, 16, chacha20.LANES).transpose(1, 2).reshape(-1, 16)[:blocks].cpu().numpy().view(np.uint32)


def key_of(rng: ChaCha20Rng) -> bytes:
    (stream,) = rng._streams.values()
    return stream._key.cpu().numpy().tobytes()


def drawn(rng: ChaCha20Rng) -> checks.Drawn:
    def draw(size: int) -> np.ndarray:
        out = torch.empty(size, device=DEVICE)
        rng.fill(out)
        return out.cpu().numpy()

    return draw


@on_either
@pytest.mark.parametrize(("key", "counter", "nonce", "stream"), PUBLISHED)
def test_blocks_are_those_of_the_published_vectors(key: bytes, counter: int, nonce: str, stream: str) -> None:
    given = bytes.fromhex(nonce)
    draw, domain = int.from_bytes(given[:8], "little"), int.from_bytes(given[8:], "little")
    found = words_of(key, draw, domain, counter + 1)[counter]
    assert found.astype("<u4").tobytes().hex() == stream


@on_either
def test_a_draw_is_the_stream_of_its_number_and_domain() -> None:
    rng, target = ChaCha20Rng(DEVICE), torch.empty(5000, dtype=torch.int64, device=DEVICE)
    draws = []
    for _ in range(3):
        rng.words(target)
        draws.append(target.cpu().numpy().copy().view(np.uint32))
    lanes = chacha20.LANES
    blocks = -(-10_000 // (16 * lanes)) * lanes
    for number, found in enumerate(draws):
        expected = words_of(key_of(rng), number, chacha20.ROWS, blocks)
        stored = expected.reshape(-1, lanes, 16).transpose(0, 2, 1).ravel()[:10_000]
        np.testing.assert_array_equal(found, stored)
    assert len(np.unique(np.concatenate(draws).view(np.uint64))) == 15_000


@on_either
def test_it_is_the_cipher_of_openssl() -> None:
    ciphers = pytest.importorskip("cryptography.hazmat.primitives.ciphers")
    key, draw, domain = os.urandom(32), 2**40 + 17, 1
    nonce = bytes(4) + draw.to_bytes(8, "little") + domain.to_bytes(4, "little")
    stream = ciphers.Cipher(ciphers.algorithms.ChaCha20(key, nonce), None).encryptor().update(bytes(64 * 9000))
    assert words_of(key, draw, domain, 9000).astype("<u4").tobytes() == stream


@on_either
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normal_numbers_are_those_of_the_words(dtype: torch.dtype) -> None:
    rng, lanes = ChaCha20Rng(DEVICE), chacha20.LANES
    target = torch.empty(2, 3 * 5 * lanes - 7, dtype=dtype, device=DEVICE)
    rng.fill(target)
    word = words_of(key_of(rng), 0, chacha20.NORMALS, 3 * lanes).reshape(3, lanes, 16).astype(np.uint64)
    high, low, turn = (word[..., k:15:3] for k in range(3))
    u = ((high << np.uint64(32)) | low).astype(np.float64) * 2.0**-64
    radius = np.sqrt(-2 * np.log(u)) * np.where(turn >> np.uint64(31), -1, 1)
    angle = ((turn << np.uint64(2)) & np.uint64(2**32 - 1)).astype(np.uint32).view(np.int32) * (math.pi / 4 * 2.0**-31)
    exchanged = ((turn >> np.uint64(30)) & np.uint64(1)).astype(bool)
    one = radius * np.where(exchanged, np.sin(angle), np.cos(angle))
    other = radius * np.where(exchanged, np.cos(angle), np.sin(angle))
    expected = np.stack([one, other], -1).reshape(3, lanes, 10).transpose(0, 2, 1).ravel()
    np.testing.assert_allclose(target.cpu().numpy().ravel(), expected[: target.numel()], rtol=2e-6, atol=1e-6)


@on_either
def test_the_radius_has_64_bits_and_the_angle_goes_around() -> None:
    from tests.support.chacha20_probe import PAIRS

    top = 2**64 - 1
    chosen = [0, 1, 2, 255, 2**31, 2**32 - 1, 2**40 + 3, 2**62, 2**63, 3 * 2**62 - 1, 3 * 2**62, top - 2**56]
    chosen += [top - 2**32, top - 2**20, top - 1, top]
    turns = np.arange(16, dtype=np.uint64) << np.uint64(28)
    whole = np.array(chosen, np.uint64)
    words = np.stack([whole >> np.uint64(32), whole & np.uint64(2**32 - 1), turns]).astype(np.uint32).view(np.int32)
    out = torch.empty(32, device=DEVICE)
    PAIRS[(1,)](out, torch.from_numpy(words).to(DEVICE).contiguous(), SIZE=16)
    one, other = out.double().cpu().numpy().reshape(2, 16)
    expected = [
        math.sqrt(-2 * (math.log((w + 0.5) * 2.0**-64) if w < 2**63 else math.log1p(-(top - w + 0.5) * 2.0**-64)))
        for w in chosen
    ]
    np.testing.assert_allclose(np.hypot(one, other), expected, rtol=3e-6)
    assert np.hypot(one, other).max() > 9.4, "numbers reach beyond 9.4"
    assert np.hypot(one, other)[-1] < 1e-9, "and as near to 0"
    # All four quarters, and both halves of each.
    assert len({math.floor(math.atan2(y, x) / (math.pi / 4)) for x, y in zip(one, other, strict=True)}) == 8


@on_either
@pytest.mark.usefixtures("wider")
def test_they_are_normal_to_the_tails_and_independent() -> None:
    rng = ChaCha20Rng(DEVICE)
    assert checks.chi_square(drawn(rng), 20_000_000 if CUDA else 400_000)
    if CUDA:
        assert checks.tails(drawn(rng), 10 * checks.ENOUGH)
    else:
        assert checks.tails(drawn(rng), 400_000, furthest=4)
    assert checks.independence(drawn(rng), drawn(ChaCha20Rng(DEVICE)), 4_000_000 if CUDA else 100_000)


@on_either
@pytest.mark.usefixtures("wider")
def test_wrong_ones_are_noticed() -> None:
    draw = drawn(ChaCha20Rng(DEVICE))
    few = 300_000
    assert not checks.tails(checks.clamped(draw, 3.5), few, furthest=4)
    assert not checks.tails(checks.coarse(draw), few, furthest=4)
    same = checks.repeated(draw)
    assert not checks.independence(same, same, few // 4)
    if CUDA:
        assert not checks.tails(checks.clamped(draw, 5.0), checks.ENOUGH)
        assert not checks.chi_square(checks.scaled(draw), 10 * few)


@on_either
@pytest.mark.usefixtures("wider")
def test_a_reused_key_and_count_are_noticed() -> None:
    rng, twin = ChaCha20Rng(DEVICE), ChaCha20Rng(DEVICE)
    first, second = drawn(rng)(1000), drawn(twin)(1000)
    assert not np.array_equal(first, second)
    (ours,), (theirs,) = rng._streams.values(), twin._streams.values()
    theirs._key.copy_(ours._key)
    theirs._draws.zero_()
    np.testing.assert_array_equal(drawn(twin)(1000), first)
    twin._streams.clear()
    ours._draws.zero_()

    def wrong(size: int) -> np.ndarray:
        ours._draws.zero_()
        return drawn(rng)(size)

    assert not checks.independence(wrong, drawn(ChaCha20Rng(DEVICE)), 50_000)


@on_either
def test_rows_and_noise_of_one_draw_have_nothing_in_common() -> None:
    key = os.urandom(32)
    rows, noise = (words_of(key, 5, domain, 500) for domain in (chacha20.ROWS, chacha20.NORMALS))
    assert not np.intersect1d(rows.ravel().view(np.uint64), noise.ravel().view(np.uint64)).size


@on_either
def test_streams_that_draw_at_once_draw_what_each_would_by_itself() -> None:
    rngs = [ChaCha20Rng(DEVICE) for _ in range(5)]
    chacha20.share_keys(rngs)
    sizes = (7000, 0, 13, 25_000, 1)
    spans = [(sum(sizes[:i]) + 3 * i, size) for i, size in enumerate(sizes)]
    normals = torch.full((sum(sizes) + 12,), -99.0, device=DEVICE)
    words = torch.full((len(normals),), -1, dtype=torch.int64, device=DEVICE)
    lanes = chacha20.LANES
    for draw in range(2):
        chacha20.word_spans(rngs[1:4], words, spans[1:4])
        chacha20.fill_spans(rngs, normals, spans)
        for i, (rng, (begin, size)) in enumerate(zip(rngs, spans, strict=True)):
            stream = rng._streams[chacha20._place(DEVICE)[0]]
            key, between = stream._key.cpu().numpy().tobytes(), 1 < i + 1 < 5
            alone = ChaCha20Rng(DEVICE)
            twin = alone._stream()
            twin._key.copy_(stream._key)
            count = 2 * draw if between else draw
            assert int(stream._draws) == (count + 2 if between else count + 1)
            if between and size:
                expected = words_of(key, count, chacha20.ROWS, -(-2 * size // (16 * lanes)) * lanes)
                stored = expected.reshape(-1, lanes, 16).transpose(0, 2, 1).ravel()[: 2 * size]
                found = words[begin : begin + size].cpu().numpy().view(np.uint32)
                np.testing.assert_array_equal(found, stored)
            twin._draws.fill_(count + 1 if between else count)
            out = torch.empty(size, device=DEVICE)
            alone.fill(out)
            assert torch.equal(normals[begin : begin + size], out)
    gaps = torch.ones(len(normals), dtype=torch.bool)
    for begin, size in spans:
        gaps[begin : begin + size] = False
    assert (normals.cpu()[gaps] == -99).all() and (words.cpu()[gaps] == -1).all(), "nothing is written between spans"
    assert len({rng._stream()._key.cpu().numpy().tobytes() for rng in rngs}) == 5


@on_either
def test_streams_of_different_tables_draw_one_after_the_other() -> None:
    first, second = ChaCha20Rng(DEVICE), ChaCha20Rng(DEVICE)
    drawn(first)(10)
    out = torch.zeros(40, device=DEVICE)
    chacha20.share_keys([first, second])
    chacha20.fill_spans([first, second], out, [(0, 20), (20, 20)])
    assert out.all() and len(out.unique()) == 40


@on_either
def test_a_table_of_keys_is_overwritten_with_its_last_stream() -> None:
    rngs = [ChaCha20Rng(DEVICE) for _ in range(3)]
    chacha20.share_keys(rngs)
    keys = rngs[0]._stream().table.keys
    rngs.pop()
    assert keys.any(1).all()
    rngs.clear()
    assert not keys.any()


@on_either
def test_a_key_is_overwritten_and_shown_to_nobody() -> None:
    rng = ChaCha20Rng(DEVICE)
    drawn(rng)(10)
    (stream,) = rng._streams.values()
    key, text = stream._key, key_of(rng)
    assert text != bytes(32)
    assert text.hex() not in repr(rng) and repr(rng) == f"ChaCha20Rng({DEVICE})"
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="neither copied nor written"):
            attempt(rng)
    del rng, stream
    assert not key.any()


@on_either
def test_a_key_of_zeros_gives_no_numbers() -> None:
    rng = ChaCha20Rng(DEVICE)
    drawn(rng)(10)
    (stream,) = rng._streams.values()
    stream._key.zero_()
    assert np.isnan(drawn(rng)(1000)).all()


@on_either
def test_nothing_is_drawn_into_nothing_and_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = ChaCha20Rng(DEVICE)
    rng.fill(torch.empty(0, device=DEVICE))
    monkeypatch.setattr(chacha20, "_MOST", 100)
    with pytest.raises(HushError, match="101 numbers are too many"):
        drawn(rng)(101)


def test_only_a_gpu_has_one() -> None:
    assert Secure().device_rng(torch.device("cpu")) is None


@on_a_gpu
def test_a_replayed_graph_draws_anew() -> None:
    rng, out, stream = ChaCha20Rng(DEVICE), torch.empty(100_000, device=DEVICE), torch.cuda.Stream()
    graph, seen = torch.cuda.CUDAGraph(), []
    with torch.cuda.stream(stream):
        rng.fill(out)
        seen.append(out.clone())
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        rng.fill(out)
    for _ in range(4):
        graph.replay()
        torch.cuda.synchronize()
        seen.append(out.clone())
    with torch.cuda.stream(stream):
        rng.fill(out)
    torch.cuda.synchronize()
    seen.append(out.clone())
    crossed = torch.corrcoef(torch.stack(seen)) - torch.eye(6, device=DEVICE)
    assert float(crossed.abs().max()) < 6 / math.sqrt(100_000)
    assert len({float(each[0]) for each in seen}) == 6


@on_a_gpu
def test_no_key_is_made_during_a_capture() -> None:
    rng, out = ChaCha20Rng(DEVICE), torch.empty(10, device=DEVICE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the graph is empty
        with pytest.raises(HushError, match="draw once before"), torch.cuda.graph(torch.cuda.CUDAGraph()):
            rng.fill(out)


@on_a_gpu
def test_streams_have_keys_of_their_own() -> None:
    rng, kept = ChaCha20Rng(DEVICE), []
    for _ in range(2):
        with torch.cuda.stream(torch.cuda.Stream()):
            target = torch.empty(1000, device=DEVICE)
            rng.fill(target)
            kept.append(target)
    torch.cuda.synchronize()
    assert len({stream._key.cpu().numpy().tobytes() for stream in rng._streams.values()}) == 2
    assert not torch.equal(*kept)
