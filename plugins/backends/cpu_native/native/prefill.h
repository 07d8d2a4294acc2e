// Several query tokens per sequence: bound by arithmetic. Keys and values are packed once per panel, as floats, and all
// rows of the item (query tokens x heads of the group) are multiplied with them.
#pragma once

#include <utility>

#include "step.h"

namespace hardpoint::HARDPOINT_ISA {

constexpr int PANEL = 64;  // keys
constexpr int ROWS = 512;  // of an item: their sums and logits stay in the second-level cache
constexpr int TALL = 6;
#if defined(__AVX512F__)
constexpr int WIDE = 4;
#else
constexpr int WIDE = 2;
#endif

// c[m][n] = (or +=) sum over k of a[m][k] b[k][n], for M rows and W vectors of columns.
template <int M, int W>
void multiply_tile(const float *a, int lda, const float *b, int ldb, float *c, int ldc, int depth, bool add) {
    vf sum[M][W];
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int w = 0; w < W; w++) sum[m][w] = add ? load(c + m * ldc + w * N) : vf{};
    for (int k = 0; k < depth; k++) {
        vf column[W];
#pragma GCC unroll 4
        for (int w = 0; w < W; w++) column[w] = load(b + static_cast<size_t>(k) * ldb + w * N);
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
            float factor = a[m * lda + k];
#pragma GCC unroll 4
            for (int w = 0; w < W; w++) sum[m][w] += column[w] * factor;
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int w = 0; w < W; w++) store(c + m * ldc + w * N, sum[m][w]);
}

template <int W>
void multiply_columns(const float *a, int lda, const float *b, int ldb, float *c, int ldc, int rows, int depth, bool add) {
    int m = 0;
    for (; m + TALL <= rows; m += TALL)
        multiply_tile<TALL, W>(a + m * lda, lda, b, ldb, c + m * ldc, ldc, depth, add);
    for (; m + 2 <= rows; m += 2) multiply_tile<2, W>(a + m * lda, lda, b, ldb, c + m * ldc, ldc, depth, add);
    if (m < rows) multiply_tile<1, W>(a + m * lda, lda, b, ldb, c + m * ldc, ldc, depth, add);
}

inline void multiply(const float *a, int lda, const float *b, int ldb, float *c, int ldc, int rows, int columns,
                     int depth, bool add) {
    int n = 0;
    for (; n + WIDE * N <= columns; n += WIDE * N)
        multiply_columns<WIDE>(a, lda, b + n, ldb, c + n, ldc, rows, depth, add);
    for (; n < columns; n += N) multiply_columns<1>(a, lda, b + n, ldb, c + n, ldc, rows, depth, add);
}

constexpr float FAR = 5;  // how far a logit may exceed what is subtracted from it: weights stay below 149

// Whether any lane does.
inline bool exceeds(vf v, float limit) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)v, (__m512)broadcast(limit), _CMP_GT_OQ);
#else
    return horizontal_max(v) > limit;
#endif
}

// Where an item's rows begin to differ in what they see.
struct Sight {
    int all_from, all_to;  // keys that every row sees

    Sight(const Step &step, const Sequence &s, const Item &item) {
        int ignored;
        step.visible(s, item.last - 1, all_from, ignored);
        step.visible(s, item.first, ignored, all_to);
    }
    bool whole(int from, int to) const { return all_from <= from && to <= all_to; }
};

// Turns a row's products into logits, in place: scale, soft cap, ALiBi, mask. Gives the largest of each lane.
inline vf logits_of_row(const Layer &layer, float scale, float *x, int width, int from, int low, int high,
                           bool whole, int head, int position) {
    vf top = broadcast(-INFINITE);
    vi lane;
    for (int i = 0; i < N; i++) lane[i] = i;
    float slope = layer.slopes.empty() ? 0 : layer.slopes[head];
    for (int j = 0; j < width; j += N) {
        vf v = load(x + j) * scale;
        if (layer.soft_cap > 0) v = hyperbolic_tangent(v / layer.soft_cap) * layer.soft_cap;
        vi key = lane + (from + j);
        if (slope != 0) v += __builtin_convertvector(key - position, vf) * slope;
        if (!whole) v = ((key >= low) & (key < high)) != 0 ? v : broadcast(-INFINITE);
        store(x + j, v);
        top = larger(top, v);
    }
    return top;
}

inline bool finite(const float *p, size_t count) {
    vf zero{};
    for (size_t i = 0; i < count; i += N) zero += load(p + i) * 0.f;
    return horizontal_sum(zero) == 0;
}

// Values of a panel that are infinite or no number, each key's in a row of its own with zeros between. In the panel they
// would reach the rows that do not see their key too: zero times infinity is no number.
class Apart {
  public:
    Apart(int most_keys, int size) : size_(size) {
        thread_local Scratch scratch;
        rows_ = scratch.floats(size_t(most_keys) * (size + 1));
        of_key_ = reinterpret_cast<int *>(rows_ + size_t(most_keys) * size);
    }
    void begin(int keys) {
        count_ = 0, keys_ = keys;
        std::fill(of_key_, of_key_ + keys, -1);
    }
    void take(int key, int element, float value) {
        if (of_key_[key] < 0) {
            of_key_[key] = count_++;
            std::fill(row(key), row(key) + size_, 0.f);
        }
        row(key)[element] = value;
    }
    // Adds what keys [low, high) of the panel have, where weight(key) is theirs.
    template <class Weight>
    void add(int low, int high, Weight &&weight, float *sum) const {
        for (int key = std::max(low, 0); count_ && key < std::min(high, keys_); key++)
            if (of_key_[key] >= 0)
                for (int d = 0; d < size_; d += N) store(sum + d, load(sum + d) + load(row(key) + d) * weight(key));
    }

  private:
    float *row(int key) const { return rows_ + size_t(of_key_[key]) * size_; }

    const int size_;
    float *rows_;
    int *of_key_, count_ = 0, keys_ = 0;
};

// `apart`: values that are no numbers are taken apart. What is a number has the same bits with it and without.
template <class T>
void prefill(const Call<T> &c, const Item &item, int kv_head, bool apart = false) {
    const Layer &layer = c.layer;
    const Sequence &s = c.step.sequences[item.sequence];
    const int group = layer.group(), first_head = kv_head * group, rows = (item.last - item.first) * group;
    const int size = layer.head_size, v_size = layer.v_head_size;

    size_t lines = rows;
    float *query = Scratch::mine().floats(lines * (size + v_size + PANEL + N + 1) + size_t{PANEL} * (size + v_size) + 64);
    float *sum = query + lines * size, *x = sum + lines * v_size, *keys = x + lines * PANEL;
    // A row's weights are summed in N parts.
    float *values = keys + size_t{PANEL} * size, *weight = values + size_t{PANEL} * v_size, *bases = weight + lines * N;
    for (int r = 0; r < rows; r++) {
        load_row(layer.storage, c.query.at(s.query_start + item.first + r / group, first_head + r % group), size,
                 query + size_t(r) * size);
        bases[r] = -INFINITE;
    }
    std::fill(weight, weight + lines * N, 0.f);
    std::fill(sum, sum + lines * v_size, 0.f);
    const Sight sight(c.step, s, item);
    Apart strange(apart ? PANEL : 0, v_size);

    // Panels begin at multiples of their size, so that a row's sums do not depend on the item that it lies in.
    for (int from = item.low / PANEL * PANEL; from < item.high; from += PANEL) {
        const int begin = std::max(from, item.low), end = std::min(from + PANEL, item.high), count = end - begin;
        const T *key_rows[PANEL], *value_rows[PANEL];
        c.keys.rows(c.step, s, kv_head, begin, count, key_rows);
        c.values.rows(c.step, s, kv_head, begin, count, value_rows);
        if (count < PANEL) std::memset(keys, 0, sizeof(float) * PANEL * size);
        for (int t = 0; t < count; t += N) {
            int full = std::min(N, count - t);
            float *to = keys + begin - from + t;
            for (int d = 0; d < size; d += N) {
#if defined(__AVX512F__)
                if (full == N) {
                    __m512i square[N];
                    for (int i = 0; i < N; i++) square[i] = (__m512i)load(key_rows[t + i] + d);
                    transpose(square);
                    for (int j = 0; j < N; j++) store(to + size_t(d + j) * PANEL, (vf)square[j]);
                    continue;
                }
#endif
                alignas(64) float square[N][N];
                for (int i = 0; i < full; i++) store(square[i], load(key_rows[t + i] + d));
                for (int j = 0; j < N; j++)
                    for (int i = 0; i < full; i++) to[size_t(d + j) * PANEL + i] = square[i][j];
            }
        }
        for (int t = 0; t < count; t++)
            for (int d = 0; d < v_size; d += N)
                store(values + size_t(begin - from + t) * v_size + d, load(value_rows[t] + d));
        strange.begin(apart ? PANEL : 0);
        for (int t = begin - from; apart && t < end - from; t++)
            for (int d = 0; d < v_size; d++)
                if (float &value = values[size_t(t) * v_size + d]; !(std::fabs(value) < INFINITE))
                    strange.take(t, d, std::exchange(value, 0.f));
        multiply(query, size, keys, PANEL, x, PANEL, rows, PANEL, size, false);
        const bool whole = sight.whole(from, from + PANEL);
        for (int r = 0; r < rows; r++) {
            int token = item.first + r / group, low = 0, high = 0;
            if (!whole) c.step.visible(s, token, low, high);
            float *row = x + size_t(r) * PANEL;
            const vf most = logits_of_row(layer, c.scale, row, PANEL, from, low, high, whole, first_head + r % group,
                                          s.position(token));
            float &base = bases[r], *parts = weight + size_t(r) * N;
            // What is subtracted stays as it is until a logit exceeds it by far.
            if (exceeds(most, base + FAR)) {
                const float top = horizontal_max(most);
                if (base != -INFINITE) {
                    const float fade = exponential(broadcast(base - top))[0];
                    store(parts, load(parts) * fade);
                    float *o = sum + size_t(r) * v_size;
                    for (int d = 0; d < v_size; d += N) store(o + d, load(o + d) * fade);
                }
                base = top;
            }
            const vf less = broadcast(base == -INFINITE ? 0 : base);
            vf total = load(parts);
            for (int j = 0; j < PANEL; j += N) {
                const vf p = exponential(load(row + j) - less);
                store(row + j, p);
                total += p;
            }
            store(parts, total);
            if (!apart) continue;
            c.step.visible(s, token, low, high);
            strange.add(low - from, high - from, [&](int key) { return row[key]; }, sum + size_t(r) * v_size);
        }
        multiply(x + begin - from, PANEL, values + size_t(begin - from) * v_size, v_size, sum, v_size, rows, v_size,
                 count, true);
    }
    if (!apart && !finite(sum, lines * v_size)) return prefill(c, item, kv_head, true);
    for (int r = 0; r < rows; r++)
        finish(c, s.query_start + item.first + r / group, first_head + r % group, sum + size_t(r) * v_size, bases[r],
               horizontal_sum(load(weight + size_t(r) * N)));
}

}  // namespace hardpoint::HARDPOINT_ISA
