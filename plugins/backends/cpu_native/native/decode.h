// One query token per sequence: memory bound, so every key and value is read once for all heads of its group, ahead
// of its use.
#pragma once

#include <type_traits>

#include "units.h"

namespace hardpoint::HARDPOINT_ISA {

constexpr int TILE = 32;  // keys

// Two vectors of neighbouring elements. Widening bfloat16 is cheaper by even and odd elements than by halves, so there
// they come apart that way, and `untangle` puts a whole row back in order when all is summed.
template <class T>
void load_two(const T *p, vf &first, vf &second) {
#if defined(__AVX512F__)
    if constexpr (std::is_same_v<T, bfloat16>) {
        __m512i both = _mm512_loadu_si512(p);
        first = (vf)_mm512_slli_epi32(both, 16);
        second = (vf)_mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xffff0000)));
        return;
    }
#endif
    first = load(p);
    second = load(p + N);
}

#if defined(__AVX512F__)
// Takes two vectors apart from one another: `low` says where the first sixteen elements are, the others are 8 further.
inline void untangle(float *row, int size, __m512i low) {
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    for (int d = 0; d < size; d += 2 * N) {
        __m512 first = (__m512)load(row + d), second = (__m512)load(row + d + N);
        store(row + d, (vf)_mm512_permutex2var_ps(first, low, second));
        store(row + d + N, (vf)_mm512_permutex2var_ps(first, high, second));
    }
}
#endif

// Whether values are summed by bfloat16 products of two keys at a time, weights rounded.
template <class T>
bool sums_pairs([[maybe_unused]] const Layer &layer) {
#if defined(__AVX512BF16__)
    return std::is_same_v<T, bfloat16> && layer.storage == Storage::bfloat16;
#else
    return false;
#endif
}

template <class T>
void untangle([[maybe_unused]] const Layer &layer, [[maybe_unused]] float *row, [[maybe_unused]] int size) {
#if defined(__AVX512F__)
    if constexpr (std::is_same_v<T, bfloat16>) {
        if (sums_pairs<T>(layer))
            untangle(row, size, _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23));
        else
            untangle(row, size, _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23));
    }
#endif
}

// State of G heads. Lanes are (key, head): lane i belongs to head i % G.
template <int G>
struct Heads {
    vf largest, weight, slope;
    const float *query;
    const char *raw[G];  // the same as it came in
    float *sum;
};

// a[k * G + g] = key k times query g.
template <class T, int G>
void products(const Call<T> &c, const Heads<G> &h, HeadRows<T> rows, Fetching<T, TILE> &fetching, vf (&a)[N]) {
    constexpr int KEYS = N / G;
    const int size = c.layer.head_size;
#pragma GCC unroll 16
    for (int i = 0; i < N; i++) a[i] = vf{};
#if defined(__AVX512BF16__)
    if constexpr (std::is_same_v<T, bfloat16>) {
        if (c.layer.storage == Storage::bfloat16) {
            for (int d = 0; d < size; d += 32) {
                const __mmask32 there = size - d >= 32 ? 0xffffffffu : 0xffffu;
                fetching.step();
                __m512bh q[G];
#pragma GCC unroll 4
                for (int g = 0; g < G; g++) q[g] = (__m512bh)_mm512_maskz_loadu_epi16(there, h.raw[g] + d * 2);
#pragma GCC unroll 16
                for (int k = 0; k < KEYS; k++) {
                    __m512bh key = (__m512bh)_mm512_maskz_loadu_epi16(there, rows[k] + d);
#pragma GCC unroll 4
                    for (int g = 0; g < G; g++) a[k * G + g] = (vf)_mm512_dpbf16_ps((__m512)a[k * G + g], key, q[g]);
                }
            }
            return;
        }
    }
#endif
    for (int d = 0; d < size; d += N) {
        fetching.step();
        vf q[G];
#pragma GCC unroll 4
        for (int g = 0; g < G; g++) q[g] = load(h.query + g * size + d);
#pragma GCC unroll 16
        for (int k = 0; k < KEYS; k++) {
            vf key = load(rows[k] + d);
#pragma GCC unroll 4
            for (int g = 0; g < G; g++) a[k * G + g] += key * q[g];
        }
    }
}

template <class T, int G>
void logits(const Call<T> &c, const Heads<G> &h, HeadRows<T> rows, Fetching<T, TILE> &fetching, int count, int position,
            float *weights, vf &tile_largest) {
    constexpr int KEYS = N / G;
    const Layer &layer = c.layer;
    vi lane;
    for (int i = 0; i < N; i++) lane[i] = i / G;
    for (int t = 0; t < count; t += KEYS) {
        vf a[N];
        products<T, G>(c, h, rows + t, fetching, a);
        vf x = sums(a) * c.scale;
        if (layer.soft_cap > 0) x = hyperbolic_tangent(x / layer.soft_cap) * layer.soft_cap;
        if (!layer.slopes.empty()) x += h.slope * __builtin_convertvector(lane + (t - position), vf);
        if (t + KEYS > count) x = lane + t < count ? x : broadcast(-INFINITE);
        store(weights + t * G, x);
        tile_largest = larger(tile_largest, x);
    }
}

template <class T, int G, int WIDTH>
void add_values(const float *weights, HeadRows<T> rows, Fetching<T, TILE> &fetching, int count, int from,
                const float *fade, float *sum, int size) {
    vf a[G][WIDTH];
#pragma GCC unroll 4
    for (int g = 0; g < G; g++)
#pragma GCC unroll 4
        for (int w = 0; w < WIDTH; w++) a[g][w] = load(sum + g * size + from + w * N) * fade[g];
    for (int t = 0; t < count; t++) {
        const T *row = rows[t] + from;
        fetching.step();
        vf v[WIDTH];
        if constexpr (WIDTH > 1) {
#pragma GCC unroll 4
            for (int w = 0; w < WIDTH; w += 2) load_two(row + w * N, v[w], v[w + 1]);
        } else {
            v[0] = load(row);
        }
#pragma GCC unroll 4
        for (int g = 0; g < G; g++) {
            float weight = weights[t * G + g];
#pragma GCC unroll 4
            for (int w = 0; w < WIDTH; w++) a[g][w] += v[w] * weight;
        }
    }
#pragma GCC unroll 4
    for (int g = 0; g < G; g++)
#pragma GCC unroll 4
        for (int w = 0; w < WIDTH; w++) store(sum + g * size + from + w * N, a[g][w]);
}

#if defined(__AVX512BF16__)
// As `add_values`, for 64 columns: `pairs` has the weights of two keys each, as bfloat16.
template <int G>
void add_pairs(const uint32_t *pairs, HeadRows<bfloat16> rows, Fetching<bfloat16, TILE> &fetching, int count, int from,
               const float *fade, float *sum, int size) {
    __m512 a[G][4];
#pragma GCC unroll 4
    for (int g = 0; g < G; g++)
#pragma GCC unroll 4
        for (int w = 0; w < 4; w++) a[g][w] = (__m512)(load(sum + g * size + from + w * N) * fade[g]);
    for (int t = 0; t < count; t += 2) {
        const int other = t + 1 < count ? t + 1 : t;  // whose weight is zero then
        const bfloat16 *even = rows[t] + from, *odd = rows[other] + from;
        fetching.step();
        __m512i v[4];
#pragma GCC unroll 2
        for (int w = 0; w < 2; w++) {
            __m512i x = _mm512_loadu_si512(even + w * 32), y = _mm512_loadu_si512(odd + w * 32);
            v[2 * w] = _mm512_unpacklo_epi16(x, y);
            v[2 * w + 1] = _mm512_unpackhi_epi16(x, y);
        }
#pragma GCC unroll 4
        for (int g = 0; g < G; g++) {
            const __m512bh weight = (__m512bh)_mm512_set1_epi32(static_cast<int>(pairs[t / 2 * G + g]));
#pragma GCC unroll 4
            for (int w = 0; w < 4; w++) a[g][w] = _mm512_dpbf16_ps(a[g][w], (__m512bh)v[w], weight);
        }
    }
#pragma GCC unroll 4
    for (int g = 0; g < G; g++)
#pragma GCC unroll 4
        for (int w = 0; w < 4; w++) store(sum + g * size + from + w * N, (vf)a[g][w]);
}
#endif

template <class T, int G>
void tile(const Call<T> &c, Heads<G> &h, const Unit<T> &unit, Fetching<T, TILE> &fetching, int position) {
    const int count = unit.count;
    alignas(64) float weights[TILE * G + N], fade[N];
    vf tile_largest = broadcast(-INFINITE);
    logits<T, G>(c, h, unit.keys, fetching, count, position - unit.from, weights, tile_largest);
    vf largest = across<G>(larger(h.largest, tile_largest), [](vf a, vf b) { return larger(a, b); });
    // Where nothing but minus infinity was seen, nothing is subtracted: no difference of infinities.
    vf base = largest == broadcast(-INFINITE) ? vf{} : largest;
    vf faded = exponential(h.largest - base);
    store(fade, faded);
    vf weight = h.weight * faded;
    int filled = (count * G + N - 1) / N * N;
    for (int i = 0; i < filled; i += N) {
        vf p = exponential(load(weights + i) - base);
        store(weights + i, p);
        weight += p;
    }
    h.weight = weight;
    h.largest = largest;
    int size = c.layer.v_head_size, d = 0;
#if defined(__AVX512BF16__)
    if constexpr (std::is_same_v<T, bfloat16>) {
        if (sums_pairs<T>(c.layer)) {
            // (key, head) become (pair of keys, head, key).
            alignas(64) uint16_t order[2 * N];
            for (int i = 0; i < 2 * N; i++) order[i] = static_cast<uint16_t>((i / 2 / G * 2 + i % 2) * G + i / 2 % G);
            const __m512i words = _mm512_load_si512(order);
            alignas(64) uint32_t pairs[TILE * G / 2 + N];
            for (int i = filled; i < TILE * G + N; i += N) store(weights + i, vf{});
            for (int i = 0; i < filled; i += 2 * N) {
                const __m512bh both = _mm512_cvtne2ps_pbh((__m512)load(weights + i + N), (__m512)load(weights + i));
                _mm512_store_si512(pairs + i / 2, _mm512_permutexvar_epi16(words, (__m512i)both));
            }
            for (; d + 64 <= size; d += 64) add_pairs<G>(pairs, unit.values, fetching, count, d, fade, h.sum, size);
        }
    }
#endif
#if defined(__AVX512F__)
    for (; d + 4 * N <= size; d += 4 * N) add_values<T, G, 4>(weights, unit.values, fetching, count, d, fade, h.sum, size);
#else
    for (; d + 2 * N <= size; d += 2 * N) add_values<T, G, 2>(weights, unit.values, fetching, count, d, fade, h.sum, size);
#endif
    for (; d < size; d += N) add_values<T, G, 1>(weights, unit.values, fetching, count, d, fade, h.sum, size);
}

// The state of heads [head, head+G) before any key.
template <class T, int G>
Heads<G> begin(const Call<T> &c, int token, int head, const float *query, float *sum) {
    Heads<G> h{broadcast(-INFINITE), vf{}, vf{}, query, {}, sum};
    for (int g = 0; g < G; g++) h.raw[g] = c.query.at(token, head + g);
    if (!c.layer.slopes.empty())
        for (int i = 0; i < N; i++) h.slope[i] = c.layer.slopes[head + i % G];
    return h;
}

// How often a tile of keys comes to where the next one is fetched.
template <class T>
int fetching_steps(const Layer &layer) {
    const int group = layer.group(), passes = group / 4 + group % 4 / 2 + group % 2;
    const bool pairs = sums_pairs<T>(layer);
    const int products = TILE * group / N * (layer.head_size / (pairs ? 2 * N : N));
    return std::max(1, products + passes * TILE / (pairs ? 2 : 1) * (layer.v_head_size / 64));
}

// One pass over the keys for four heads at a time; more than four heads of a group share a tile while it is in the
// first-level cache. Leaves sums, largest logits and weights of each key head's group, `stride` floats further each.
template <class T>
void decode(const Call<T> &c, const Item &item, int first_head, int heads, float *state, size_t stride) {
    const Layer &layer = c.layer;
    const Sequence &s = c.step.sequences[item.sequence];
    const int group = layer.group(), position = s.position(0), v_size = layer.v_head_size;
    const int fours = group / 4, twos = group % 4 / 2, ones = group % 2;
    float *query = Scratch::mine().floats(size_t(heads) * group * layer.head_size);
    Heads<4> four[MOST_TOGETHER * 8];
    Heads<2> two[MOST_TOGETHER];
    Heads<1> one[MOST_TOGETHER];
    for (int h = 0; h < heads; h++) {
        const int number = (first_head + h) * group;
        float *q = query + size_t(h) * group * layer.head_size, *sum = state + h * stride;
        for (int g = 0; g < group; g++)
            load_row(layer.storage, c.query.at(s.query_start, number + g), layer.head_size, q + g * layer.head_size);
        std::fill(sum, sum + size_t(group) * v_size, 0.f);
        int g = 0;
        auto start = [&](auto &state_of, auto begin_one, int count) {
            state_of = begin_one(c, s.query_start, number + g, q + g * layer.head_size, sum + g * v_size);
            g += count;
        };
        for (int i = 0; i < fours; i++) start(four[h * fours + i], begin<T, 4>, 4);
        if (twos) start(two[h], begin<T, 2>, 2);
        if (ones) start(one[h], begin<T, 1>, 1);
    }
    const int steps = fetching_steps<T>(layer);
    each_unit<TILE>(c, item, first_head, heads, [&](const Unit<T> &unit, const Unit<T> *next) {
        Fetching<T, TILE> fetching(c, next, steps);
        for (int i = 0; i < fours; i++) tile(c, four[unit.head * fours + i], unit, fetching, position);
        if (twos) tile(c, two[unit.head], unit, fetching, position);
        if (ones) tile(c, one[unit.head], unit, fetching, position);
        fetching.rest();
    });
    for (int h = 0; h < heads; h++) {
        float *sum = state + h * stride, *largest = sum + size_t(group) * v_size, *weight = largest + group;
        int g = 0;
        auto end = [&](auto &some, int count) {
            for (int i = 0; i < count; i++, g++) {
                largest[g] = some.largest[i];
                weight[g] = 0;
                for (int lane = i; lane < N; lane += count) weight[g] += some.weight[lane];
            }
        };
        for (int i = 0; i < fours; i++) end(four[h * fours + i], 4);
        if (twos) end(two[h], 2);
        if (ones) end(one[h], 1);
        for (g = 0; g < group; g++) untangle<T>(layer, sum + size_t(g) * v_size, v_size / (4 * N) * (4 * N));
    }
}

}  // namespace hardpoint::HARDPOINT_ISA
