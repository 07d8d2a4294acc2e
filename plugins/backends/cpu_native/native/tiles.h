// What both uses of tiles share: their configuration, which elements they multiply, weights.
#pragma once

#include <type_traits>

#include "step.h"

namespace hardpoint::HARDPOINT_ISA {

struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// GCC's tile intrinsics do not say which memory they read and write: this keeps loads and stores on their side of them.
inline void settle() { __asm__ volatile("" ::: "memory"); }

inline int round_up(int x, int multiple) { return (x + multiple - 1) / multiple * multiple; }

// 2 to the power of x, to the digits of a bfloat16; the reduction and the scale both know what to do with minus
// infinity.
inline vf power_of_two(vf x) {
    const vf f = (vf)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);  // above the next integer below
    vf p = 7.80245195e-2f * f + 2.26067178e-1f;
    p = p * f + 6.95833522e-1f;
    p = p * f + 9.99925221e-1f;
    return (vf)_mm512_scalef_ps((__m512)p, (__m512)x);
}

// bfloat16 of all magnitudes of a float8 as `load` gives it, 1/256 of its value; upper bytes apart from the lower ones.
// Processors with AMX have the look-up.
struct Bytes {
    alignas(64) uint8_t upper[128] = {}, lower[128] = {};

    constexpr Bytes() {
        for (int i = 1; i < 127; i++) {
            int digits = i < 8 ? i : 8 + i % 8, exponent = (i < 8 ? 1 : i / 8) - 18;  // digits x 2^exponent
            for (; digits < 128; exponent--) digits *= 2;
            const int bits = (exponent + 7 + 127) << 7 | (digits & 127);
            upper[i] = static_cast<uint8_t>(bits >> 8), lower[i] = static_cast<uint8_t>(bits & 255);
        }
        upper[127] = 0x7f, lower[127] = 0xc0;
    }
};

// 64 numbers, in two vectors: of each 16 the first 8, and of each 16 the others.
inline void widen(__m512i x, __m512i &first, __m512i &second) {
    static constexpr Bytes bytes;
    const __m512i low =
        _mm512_permutex2var_epi8(_mm512_load_si512(bytes.lower), x, _mm512_load_si512(bytes.lower + 64));
    __m512i high = _mm512_permutex2var_epi8(_mm512_load_si512(bytes.upper), x, _mm512_load_si512(bytes.upper + 64));
    high = _mm512_ternarylogic_epi32(high, x, _mm512_set1_epi8(-128), 0xf8);  // with the sign
    first = _mm512_unpacklo_epi8(low, high);
    second = _mm512_unpackhi_epi8(low, high);
}

// Elements of a head as tiles see them: padded, and a float8's in the order that `widen` leaves. bfloat16 is multiplied
// with bfloat16. int8 is with int8, and what it is multiplied with is split into two of those, 16 bits in all.
template <class T>
struct Elements {
    using Tiled = std::conditional_t<std::is_same_v<T, int8_t>, int8_t, bfloat16>;
    static constexpr bool SPLIT = std::is_same_v<T, int8_t>;
    static constexpr int PER_LANE = 4 / sizeof(Tiled);  // that a tile multiplies and adds at once
    static constexpr int LEVELS = SPLIT ? 2 : 1;
    static constexpr int STEP = sizeof(T) == 1 ? 64 : 32;
    static int padded(int size) { return round_up(size, STEP); }
    // Which element comes at place i.
    static int at(int i) { return std::is_same_v<T, float8> ? i / 64 * 64 + i % 32 / 8 * 16 + i % 64 / 32 * 8 + i % 8 : i; }
};

}  // namespace hardpoint::HARDPOINT_ISA
