// One query token per sequence: memory bound, so every key and value is read once for all heads of its group, ahead
// of its use.
#pragma once

#include <type_traits>

#include "step.h"

namespace hardpoint::HARDPOINT_ISA {

// Keys per tile. While one is computed, the one after the next is fetched.
constexpr int TILE = 32;

// Into the second-level cache: more of these can be under way at once than of those into the first, and a key's place
// is known two tiles before it is computed with.
inline void fetch(const void *p, int bytes) {
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const char *>(p) + i, 0, 2);
}

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
void products(const Call<T> &c, const Heads<G> &h, const T *const *rows, vf (&a)[N]) {
    constexpr int KEYS = N / G;
    const int size = c.layer.head_size;
#pragma GCC unroll 16
    for (int i = 0; i < N; i++) a[i] = vf{};
#if defined(__AVX512BF16__)
    if constexpr (std::is_same_v<T, bfloat16>) {
        if (c.layer.storage == Storage::bfloat16) {
            for (int d = 0; d < size; d += 32) {
                const __mmask32 there = size - d >= 32 ? 0xffffffffu : 0xffffu;
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
void logits(const Call<T> &c, const Heads<G> &h, const T *const *rows, const T *const *later, int count, int position,
            float *weights, vf &tile_largest) {
    constexpr int KEYS = N / G;
    const Layer &layer = c.layer;
    vi lane;
    for (int i = 0; i < N; i++) lane[i] = i / G;
    for (int t = 0; t < count; t += KEYS) {
        if (later)
            for (int k = 0; k < KEYS; k++) fetch(later[t + k], layer.head_size * sizeof(T));
        vf a[N];
        products<T, G>(c, h, rows + t, a);
        vf x = sums(a) * c.scale;
        if (layer.soft_cap > 0) x = hyperbolic_tangent(x / layer.soft_cap) * layer.soft_cap;
        if (!layer.slopes.empty()) x += h.slope * __builtin_convertvector(lane + (t - position), vf);
        if (t + KEYS > count) x = lane + t < count ? x : broadcast(-INFINITE);
        store(weights + t * G, x);
        tile_largest = larger(tile_largest, x);
    }
}

template <class T, int G, int WIDTH>
void add_values(const float *weights, const T *const *rows, const T *const *later, int count, int from, const float *fade, float *sum,
                int size) {
    vf a[G][WIDTH];
#pragma GCC unroll 4
    for (int g = 0; g < G; g++)
#pragma GCC unroll 4
        for (int w = 0; w < WIDTH; w++) a[g][w] = load(sum + g * size + from + w * N) * fade[g];
    for (int t = 0; t < count; t++) {
        const T *row = rows[t] + from;
        if (later) fetch(later[t] + from, WIDTH * N * sizeof(T));
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
void add_pairs(const uint32_t *pairs, const bfloat16 *const *rows, const bfloat16 *const *later, int count, int from,
               const float *fade, float *sum, int size) {
    __m512 a[G][4];
#pragma GCC unroll 4
    for (int g = 0; g < G; g++)
#pragma GCC unroll 4
        for (int w = 0; w < 4; w++) a[g][w] = (__m512)(load(sum + g * size + from + w * N) * fade[g]);
    for (int t = 0; t < count; t += 2) {
        const int other = t + 1 < count ? t + 1 : t;  // whose weight is zero then
        const bfloat16 *even = rows[t] + from, *odd = rows[other] + from;
        if (later) {
            fetch(later[t] + from, 128);
            fetch(later[other] + from, 128);
        }
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
void tile(const Call<T> &c, Heads<G> &h, const T *const *keys, const T *const *values, const T *const *later_keys,
          const T *const *later_values, int count, int position) {
    alignas(64) float weights[TILE * G], fade[N];
    vf tile_largest = broadcast(-INFINITE);
    logits<T, G>(c, h, keys, later_keys, count, position, weights, tile_largest);
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
            alignas(64) bfloat16 rounded[TILE * G + N];
            for (int i = 0; i < filled; i += N) store(rounded + i, load(weights + i));
            uint32_t pairs[TILE * G / 2];
            for (int t = 0; t < count; t += 2)
                for (int g = 0; g < G; g++)
                    pairs[t / 2 * G + g] = rounded[t * G + g].bits |
                                           (t + 1 < count ? uint32_t{rounded[(t + 1) * G + g].bits} << 16 : 0);
            for (; d + 64 <= size; d += 64) add_pairs<G>(pairs, values, later_values, count, d, fade, h.sum, size);
        }
    }
#endif
#if defined(__AVX512F__)
    for (; d + 4 * N <= size; d += 4 * N) add_values<T, G, 4>(weights, values, later_values, count, d, fade, h.sum, size);
#else
    for (; d + 2 * N <= size; d += 2 * N) add_values<T, G, 2>(weights, values, later_values, count, d, fade, h.sum, size);
#endif
    for (; d < size; d += N) add_values<T, G, 1>(weights, values, later_values, count, d, fade, h.sum, size);
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

// One pass over the keys for four heads at a time; more than four heads of a group share a tile while it is in the
// first-level cache. Leaves sum, largest logit and weight of each head of the group.
template <class T>
void decode(const Call<T> &c, const Item &item, int kv_head, float *sum, float *largest, float *weight) {
    const Layer &layer = c.layer;
    const Sequence &s = c.step.sequences[item.sequence];
    int group = layer.group(), first_head = kv_head * group, position = s.position(0);
    int fours = group / 4, twos = group % 4 / 2, ones = group % 2;
    float *query = Scratch::mine().floats(static_cast<size_t>(group) * layer.head_size);
    for (int g = 0; g < group; g++)
        load_row(layer.storage, c.query.at(s.query_start, first_head + g), layer.head_size, query + g * layer.head_size);
    std::fill(sum, sum + static_cast<size_t>(group) * layer.v_head_size, 0.f);
    constexpr int MOST = 64;
    Heads<4> four[MOST];
    Heads<2> two;
    Heads<1> one;
    int g = 0;
    auto q = [&] { return query + g * layer.head_size; };
    auto o = [&] { return sum + g * layer.v_head_size; };
    for (int i = 0; i < fours; i++, g += 4) four[i] = begin<T, 4>(c, s.query_start, first_head + g, q(), o());
    if (twos) two = begin<T, 2>(c, s.query_start, first_head + g, q(), o()), g += 2;
    if (ones) one = begin<T, 1>(c, s.query_start, first_head + g, q(), o());

    const T *keys[3][TILE], *values[3][TILE];
    // Rows beyond the last key repeat it: they are read and weigh nothing.
    auto find = [&](int number) {
        const int from = item.low + number * TILE, count = std::min(TILE, item.high - from), place = number % 3;
        if (count <= 0) return;
        c.keys.rows(c.step, s, kv_head, from, count, keys[place]);
        c.values.rows(c.step, s, kv_head, from, count, values[place]);
        for (int i = count; i < TILE; i++) {
            keys[place][i] = keys[place][count - 1];
            values[place][i] = values[place][count - 1];
        }
    };
    const int tiles = (item.high - item.low + TILE - 1) / TILE;
    for (int number = 0; number < std::min(tiles, 2); number++) {
        find(number);
        for (int i = 0; i < TILE; i++) {
            fetch(keys[number][i], layer.head_size * sizeof(T));
            fetch(values[number][i], layer.v_head_size * sizeof(T));
        }
    }
    for (int number = 0; number < tiles; number++) {
        const int from = item.low + number * TILE, count = std::min(TILE, item.high - from), place = number % 3;
        find(number + 2);
        const T *const *later_keys = nullptr, *const *later_values = nullptr;
        if (number + 2 < tiles) later_keys = keys[(number + 2) % 3], later_values = values[(number + 2) % 3];
        auto run = [&](auto &heads) {
            tile(c, heads, keys[place], values[place], later_keys, later_values, count, position - from);
            later_keys = later_values = nullptr;
        };
        for (int i = 0; i < fours; i++) run(four[i]);
        if (twos) run(two);
        if (ones) run(one);
    }
    g = 0;
    auto end = [&](auto &heads, int count) {
        for (int i = 0; i < count; i++, g++) {
            largest[g] = heads.largest[i];
            float total = 0;
            for (int lane = i; lane < N; lane += count) total += heads.weight[lane];
            weight[g] = total;
        }
    };
    for (int i = 0; i < fours; i++) end(four[i], 4);
    if (twos) end(two, 2);
    if (ones) end(one, 1);
    for (g = 0; g < group; g++) untangle<T>(layer, sum + static_cast<size_t>(g) * layer.v_head_size, layer.v_head_size / (4 * N) * (4 * N));
}

}  // namespace hardpoint::HARDPOINT_ISA
