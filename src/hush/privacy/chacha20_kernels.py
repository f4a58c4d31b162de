"""ChaCha20 kernels: the cipher's key stream on a GPU, as fair bits and as normal numbers with full tails.

A lane computes a block of 16 words in registers. The state is that of RFC 8439: constants, key, number of the block,
and in place of the nonce the number of the draw (64 bits) and a domain that tells bits from normal numbers.

Guarantees:
    - Key and number of the draw are read from memory when a kernel runs. They are never compiled into it, so that they
      are in no cache on disk, and a captured graph draws anew whenever it is replayed.
    - A normal number has 64 bits of radius and 32 of angle, in float32 without cancellation: pairs reach a radius of
      9.4, and are as precise near 0.

Edge cases:
    - A key that was overwritten with zeros gives NaN in place of normal numbers.
    - Words are stored program by program, word by word, lane by lane; numbers likewise, cosines before sines.
    - This module can be imported only where Triton is installed.
"""

from __future__ import annotations

from hush.triton_types import at, constexpr, tl, triton


def _quarter(a: at, b: at, c: at, d: at) -> tuple[at, at, at, at]:
    """Return the quarter round."""
    a = a + b
    d = d ^ a
    d = (d << 16) | (d >> 16)
    c = c + d
    b = b ^ c
    b = (b << 12) | (b >> 20)
    a = a + b
    d = d ^ a
    d = (d << 8) | (d >> 24)
    c = c + d
    b = b ^ c
    b = (b << 7) | (b >> 25)
    return a, b, c, d


_quarter = triton.jit(_quarter)


def _key_word(key: at, number: constexpr) -> at:
    return tl.load(key + number).to(tl.uint32, bitcast=True)


_key_word = triton.jit(_key_word)


def _block(key: at, block: at, draws: at, DOMAIN: constexpr) -> tuple[at, ...]:
    """Return the 16 words of the blocks of those numbers."""
    draw = tl.load(draws)
    none = block ^ block
    s0, s1, s2, s3 = none + 0x61707865, none + 0x3320646E, none + 0x79622D32, none + 0x6B206574
    s4, s5 = none + _key_word(key, 0), none + _key_word(key, 1)
    s6, s7 = none + _key_word(key, 2), none + _key_word(key, 3)
    s8, s9 = none + _key_word(key, 4), none + _key_word(key, 5)
    s10, s11 = none + _key_word(key, 6), none + _key_word(key, 7)
    s13, s14 = none + draw.to(tl.uint32), none + (draw >> 32).to(tl.uint32)
    s15 = none + DOMAIN
    x0, x1, x2, x3, x4, x5, x6, x7 = s0, s1, s2, s3, s4, s5, s6, s7
    x8, x9, x10, x11, x12, x13, x14, x15 = s8, s9, s10, s11, block, s13, s14, s15
    for _ in tl.static_range(10):
        x0, x4, x8, x12 = _quarter(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter(x3, x4, x9, x14)
    return (
        x0 + s0, x1 + s1, x2 + s2, x3 + s3, x4 + s4, x5 + s5, x6 + s6, x7 + s7,
        x8 + s8, x9 + s9, x10 + s10, x11 + s11, x12 + block, x13 + s13, x14 + s14, x15 + s15,
    )  # fmt: skip


_block = triton.jit(_block)


def _words(
    out: at, keys: at, draws: at, spans: at, size: at, DOMAIN: constexpr, LANES: constexpr, TABLE: constexpr
) -> None:
    """Fill with the cipher's words: of one stream, or a span of the target for each stream of a table."""
    program, lane, stream = tl.program_id(0), tl.arange(0, LANES), tl.program_id(1)
    target, number = out, size
    if TABLE:
        target = out + tl.load(spans + 2 * stream)
        number = tl.load(spans + 2 * stream + 1)
    first = program.to(tl.int64) * (16 * LANES)
    if first < number:
        word = _block(keys + 8 * stream, (program * LANES + lane).to(tl.uint32), draws + stream, DOMAIN)
        for j in tl.static_range(16):
            place = first + lane + j * LANES
            tl.store(target + place, word[j].to(tl.int32, bitcast=True), mask=place < number)


def _pair(high: at, low: at, turn: at) -> tuple[at, at]:
    """Return two normal numbers: the radius from the 64 bits of (high, low), the angle from the other word."""
    u = (high.to(tl.float32) * 4294967296.0 + low.to(tl.float32) + 0.5) * 5.421010862427522e-20
    v = ((~high).to(tl.float32) * 4294967296.0 + (~low).to(tl.float32) + 0.5) * 5.421010862427522e-20
    # Where u is near 1, its logarithm is that of 1 - v: twice the area tangent of s.
    s = v / (2.0 - v)
    q = s * s
    near = 4.0 * s * (1.0 + q * (0.3333333333 + q * (0.2 + q * 0.1428571429)))
    radius = tl.sqrt(tl.where(v < 0.25, near, -2.0 * tl.log(u)))
    # The highest bit turns by half a circle, the next exchanges the coordinates, 30 give an angle up to 45 degrees.
    radius = tl.where((turn & 0x80000000) != 0, -radius, radius)
    t = (turn << 2).to(tl.int32, bitcast=True).to(tl.float32) * 3.657295198167899e-10
    q = t * t
    sine = t * (1.0 + q * (-1.6666654611e-1 + q * (8.3321608736e-3 + q * -1.9515295891e-4)))
    cosine = 1.0 + q * (-0.5 + q * (4.166664568298827e-2 + q * (-1.388731625493765e-3 + q * 2.443315711809948e-5)))
    exchanged = (turn & 0x40000000) != 0
    return radius * tl.where(exchanged, sine, cosine), radius * tl.where(exchanged, cosine, sine)


pair = triton.jit(_pair)


def _normal(
    out: at, keys: at, draws: at, spans: at, size: at, DOMAIN: constexpr, LANES: constexpr, TABLE: constexpr
) -> None:
    """Fill with standard normal numbers, ten of each block; otherwise like the words."""
    program, lane, stream = tl.program_id(0), tl.arange(0, LANES), tl.program_id(1)
    target, number = out, size
    if TABLE:
        target = out + tl.load(spans + 2 * stream)
        number = tl.load(spans + 2 * stream + 1)
    first = program.to(tl.int64) * (10 * LANES)
    if first < number:
        key = keys + 8 * stream
        word = _block(key, (program * LANES + lane).to(tl.uint32), draws + stream, DOMAIN)
        some = _key_word(key, 0) | _key_word(key, 1) | _key_word(key, 2) | _key_word(key, 3)
        some = some | _key_word(key, 4) | _key_word(key, 5) | _key_word(key, 6) | _key_word(key, 7)
        unit = tl.where(some != 0, 1.0, float("nan"))
        for j in tl.static_range(5):
            one, other = pair(word[3 * j], word[3 * j + 1], word[3 * j + 2])
            place = first + lane + 2 * j * LANES
            tl.store(target + place, one * unit, mask=place < number)
            tl.store(target + place + LANES, other * unit, mask=place + LANES < number)


WORDS, NORMAL = (triton.jit(do_not_specialize=["size"])(f) for f in (_words, _normal))
