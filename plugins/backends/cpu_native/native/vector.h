// One vector of floats and what the kernels do with it, for the instruction set this file is compiled for.
// Everything here lies in a namespace of that name, so that two modules never share an inline function.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace hardpoint::HARDPOINT_ISA {

struct bfloat16 {
    uint16_t bits;
};
struct float16 {
    uint16_t bits;
};
// e4m3fn: no infinity, and all ones is the NaN. Loaded as 1/256 of its value (see UNIT): that is what its bits mean
// when they are shifted into a float16, denormal numbers included.
struct float8 {
    uint8_t bits;
};

// A loaded number times this is the stored one; it goes into the scale of a cache.
template <class T>
constexpr float UNIT = 1;
template <>
constexpr float UNIT<float8> = 256;

#if defined(__AVX512F__)
constexpr int N = 16;
#elif defined(__AVX2__)
constexpr int N = 8;
#else
constexpr int N = 4;
#endif

typedef float vf __attribute__((vector_size(N * 4)));
typedef int32_t vi __attribute__((vector_size(N * 4)));
typedef uint32_t vu __attribute__((vector_size(N * 4)));
typedef uint16_t vh __attribute__((vector_size(N * 2)));

constexpr float INFINITE = std::numeric_limits<float>::infinity();

inline vf broadcast(float x) { return x - vf{}; }

inline vf load(const float *p) {
    vf v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

// Intrinsics where the compiler would widen in two halves.
inline vf load(const bfloat16 *p) {
#if defined(__AVX512F__)
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p))), 16);
#elif defined(__AVX2__)
    return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))), 16);
#else
    vh h;
    std::memcpy(&h, p, sizeof h);
    return (vf)(__builtin_convertvector(h, vu) << 16);
#endif
}

inline vf load(const float16 *p) {
#if defined(__AVX512F__)
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
#elif defined(__AVX2__)
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
#else
    return (vf)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const uint16_t *>(p))));
#endif
}

inline vf load(const float8 *p) {
#if defined(__AVX512F__)
    __m256i w = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
    __mmask16 nan = _mm256_testn_epi16_mask(_mm256_andnot_si256(w, _mm256_set1_epi16(0x7f)), _mm256_set1_epi16(0x7f));
    __m256i h = _mm256_and_si256(_mm256_slli_epi16(w, 7), _mm256_set1_epi16(static_cast<int16_t>(0xbfff)));
    return (vf)_mm512_cvtph_ps(_mm256_mask_mov_epi16(h, nan, _mm256_set1_epi16(0x7e00)));
#elif defined(__AVX2__)
    __m128i w = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p)));
    __m128i low = _mm_set1_epi16(0x7f), nan = _mm_cmpeq_epi16(_mm_and_si128(w, low), low);
    __m128i h = _mm_and_si128(_mm_slli_epi16(w, 7), _mm_set1_epi16(static_cast<int16_t>(0xbfff)));
    return (vf)_mm256_cvtph_ps(_mm_or_si128(h, _mm_and_si128(nan, _mm_set1_epi16(0x7e00))));
#else
    uint16_t half[N];
    for (int i = 0; i < N; i++) {
        unsigned b = p[i].bits, magnitude = b & 0x7f;
        half[i] = static_cast<uint16_t>((b & 0x80) << 8 | (magnitude == 0x7f ? 0x7e00 : magnitude << 7));
    }
    return load(reinterpret_cast<const float16 *>(half));
#endif
}

inline vf load(const int8_t *p) {
#if defined(__AVX512F__)
    return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))));
#elif defined(__AVX2__)
    return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p))));
#else
    vi wide{};
    for (int i = 0; i < N; i++) wide[i] = p[i];
    return __builtin_convertvector(wide, vf);
#endif
}

inline void store(float *p, vf v) { std::memcpy(p, &v, sizeof v); }

inline void store(bfloat16 *p, vf v) {
    // To the nearest, ties to even; the sum must not carry a NaN into infinity.
    vu u = (vu)v;
    vu rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    vu nan = (u >> 16) | 0x40;
    vu bits = v == v ? rounded : nan;
#if defined(__AVX512F__)
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), _mm512_cvtepi32_epi16((__m512i)bits));
#else
    vh h = __builtin_convertvector(bits, vh);
    std::memcpy(p, &h, sizeof h);
#endif
}

inline void store(float16 *p, vf v) {
#if defined(__AVX512F__)
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__AVX2__)
    _mm_storeu_si128(reinterpret_cast<__m128i *>(p), _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
#else
    vst1_u16(reinterpret_cast<uint16_t *>(p), vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)v)));
#endif
}

// To the nearest, ties to even; beyond the largest number the largest, as a cache stores it.
inline float8 narrow(float x) {
    uint32_t u;
    std::memcpy(&u, &x, 4);
    const uint32_t sign = u >> 24 & 0x80, magnitude = u & 0x7fffffff;
    if (magnitude > 0x7f800000) return {static_cast<uint8_t>(sign | 0x7f)};
    if (magnitude >= 0x43e00000) return {static_cast<uint8_t>(sign | 0x7e)};  // 448
    if (magnitude < 0x3c800000) {  // 2^-6: below it the step is 2^-9, which the sum with 2^14 rounds to
        float a = std::fabs(x) + 16384.f;
        std::memcpy(&u, &a, 4);
        return {static_cast<uint8_t>(sign | (u - 0x46800000))};
    }
    return {static_cast<uint8_t>(sign | ((magnitude + 0x7ffff + (magnitude >> 20 & 1) - (120u << 23)) >> 20))};
}

// The larger of both; b where one is no number.
inline vf larger(vf a, vf b) {
#if defined(__AVX512F__)
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return a > b ? a : b;
#endif
}

inline vf smaller(vf a, vf b) {
#if defined(__AVX512F__)
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return a < b ? a : b;
#endif
}

// e to the power of x; 0 from about -87 downwards. At most 2 units in the last place near 0, and what is further away
// weighs accordingly less in a softmax.
inline vf exponential(vf x) {
#if defined(__AVX512F__)
    __m512 t = (__m512)smaller(broadcast(126.f), larger(broadcast(-200.f), x * 1.44269504f));
    __m512 n = _mm512_roundscale_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    vf f = (vf)t - (vf)n;
#else
    vf t = smaller(broadcast(126.f), larger(broadcast(-126.f), x * 1.44269504f));
    vf shifted = t + 12582912.f;  // 1.5 x 2^23: the integer lands in the low bits
    vf f = t - (shifted - 12582912.f);
#endif
    vf p = 1.33335581e-3f * f + 9.61812911e-3f;
    p = p * f + 5.55041087e-2f;
    p = p * f + 2.40226507e-1f;
    p = p * f + 6.93147181e-1f;
    p = p * f + 1.f;
#if defined(__AVX512F__)
    return (vf)_mm512_scalef_ps((__m512)p, n);
#else
    vf r = (vf)((vi)p + ((vi)shifted << 23));
    return x < -87.f ? vf{} : r;
#endif
}

// Near zero by a polynomial of its own: the difference of two ones there would leave a large soft cap few digits.
inline vf hyperbolic_tangent(vf x) {
    vf z = x * x;
    vf p = -5.70499e-3f * z + 2.063909e-2f;
    p = p * z - 5.373972e-2f;
    p = p * z + 1.3331442e-1f;
    p = p * z - 3.333328e-1f;
    return z < 0.39f ? p * z * x + x : 1.f - 2.f / (exponential(x + x) + 1.f);
}

inline float horizontal_sum(vf v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)v);
#else
    float sum = 0;
    for (int i = 0; i < N; i++) sum += v[i];
    return sum;
#endif
}

inline float horizontal_max(vf v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)v);
#else
    float largest = v[0];
    for (int i = 1; i < N; i++) largest = v[i] > largest ? v[i] : largest;
    return largest;
#endif
}

// Lane i is the sum of a[i].
inline vf sums(const vf (&a)[N]) {
#if defined(__AVX512F__)
    __m512 t[8], u[4], v[2];
    for (int i = 0; i < 8; i++) {
        __m512 x = (__m512)a[2 * i], y = (__m512)a[2 * i + 1];
        t[i] = _mm512_unpacklo_ps(x, y) + _mm512_unpackhi_ps(x, y);
    }
    for (int i = 0; i < 4; i++) {
        __m512d x = (__m512d)t[2 * i], y = (__m512d)t[2 * i + 1];
        u[i] = (__m512)_mm512_unpacklo_pd(x, y) + (__m512)_mm512_unpackhi_pd(x, y);
    }
    for (int i = 0; i < 2; i++) {
        __m512 x = u[2 * i], y = u[2 * i + 1];
        v[i] = _mm512_shuffle_f32x4(x, y, 0x88) + _mm512_shuffle_f32x4(x, y, 0xdd);
    }
    return (vf)(_mm512_shuffle_f32x4(v[0], v[1], 0x88) + _mm512_shuffle_f32x4(v[0], v[1], 0xdd));
#elif defined(__AVX2__)
    __m256 t[4], u[2];
    for (int i = 0; i < 4; i++) {
        __m256 x = (__m256)a[2 * i], y = (__m256)a[2 * i + 1];
        t[i] = _mm256_unpacklo_ps(x, y) + _mm256_unpackhi_ps(x, y);
    }
    for (int i = 0; i < 2; i++) {
        __m256d x = (__m256d)t[2 * i], y = (__m256d)t[2 * i + 1];
        u[i] = (__m256)_mm256_unpacklo_pd(x, y) + (__m256)_mm256_unpackhi_pd(x, y);
    }
    return (vf)(_mm256_permute2f128_ps(u[0], u[1], 0x20) + _mm256_permute2f128_ps(u[0], u[1], 0x31));
#else
    vf r;
    for (int i = 0; i < N; i++) r[i] = horizontal_sum(a[i]);
    return r;
#endif
}

#if defined(__AVX512F__)
// 16 rows of 16 numbers become 16 rows the other way round.
inline void transpose(__m512i (&r)[16]) {
    __m512i t[16];
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++) {
        r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}
#endif

// Lanes i, i + period, i + 2 period ... all become what `combine` makes of them.
template <int period, class Combine>
inline vf across(vf v, Combine combine) {
    for (int step = period; step < N; step *= 2) {
        vi from;
        for (int i = 0; i < N; i++) from[i] = (i + step) % N;
#if defined(__clang__)
        vf turned;
        for (int i = 0; i < N; i++) turned[i] = v[from[i]];
#else
        vf turned = __builtin_shuffle(v, from);
#endif
        v = combine(v, turned);
    }
    return v;
}

}  // namespace hardpoint::HARDPOINT_ISA
