// Prefill in bfloat16 with AMX: tiles of 16 rows of 64 bytes multiply, AVX-512 does the softmax between them. Keys and
// values are packed once per panel as tiles want them, pairs next to one another; weights are rounded to bfloat16.
#pragma once

#include <type_traits>

#include "prefill.h"

namespace hardpoint::HARDPOINT_ISA {

constexpr int ROWS_AMX = 512;
constexpr int PANEL_AMX = 256;
constexpr int STRIP = 32;  // rows that pass through both products together

struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

inline int round_up(int x, int multiple) { return (x + multiple - 1) / multiple * multiple; }

// 16 rows of 16 pairs become 16 rows of 16 pairs the other way round.
inline void transpose_pairs(__m512i (&r)[16]) {
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

// 32 elements as bfloat16, which holds every 8-bit number; those beyond `count` (16 or 32) are zeros.
inline __m512i pairs(const bfloat16 *p, int count) {
    return _mm512_maskz_loadu_epi16(count >= 32 ? 0xffffffffu : 0xffffu, p);
}
template <class T>
__m512i pairs(const T *p, int count) {
    __m512 low = (__m512)load(p), high = count >= 32 ? (__m512)load(p + 16) : _mm512_setzero_ps();
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

// Keys [0, count) of a panel: tiles of 16 keys x 32 dimensions, tile (key block, dimension block) after the other.
// Rows that are null are zeros.
template <class T>
void pack_keys(const T *const *rows, int keys, int size, bfloat16 *to) {
    for (int k = 0; k < keys; k += 16) {
        for (int d = 0; d < size; d += 32, to += 512) {
            __m512i r[16];
            for (int i = 0; i < 16; i++) r[i] = rows[k + i] ? pairs(rows[k + i] + d, size - d) : _mm512_setzero_si512();
            transpose_pairs(r);
            for (int i = 0; i < 16; i++) _mm512_store_si512(to + i * 32, r[i]);
        }
    }
}

// Values: tiles of 32 keys x 16 dimensions, tile (dimension block, key block) after the other.
template <class T>
void pack_values(const T *const *rows, int keys, int size, bfloat16 *to) {
    auto wide = [size](const T *row, int d) {
        return row && d < size ? _mm512_cvtepu16_epi32(_mm512_castsi512_si256(pairs(row + d, 16))) : _mm512_setzero_si512();
    };
    for (int d = 0; d < round_up(size, 32); d += 16)
        for (int k = 0; k < keys; k += 32, to += 512)
            for (int i = 0; i < 16; i++)
                _mm512_store_si512(to + i * 32, _mm512_or_si512(wide(rows[k + 2 * i], d),
                                                                _mm512_slli_epi32(wide(rows[k + 2 * i + 1], d), 16)));
}

// Products of two blocks of 16 rows with two blocks of 16 columns, over `depth` blocks of 32; tiles 0 to 3 hold sums.
inline void multiply_tiles(const bfloat16 *a, int lda, const bfloat16 *b0, const bfloat16 *b1, int depth) {
    for (int k = 0; k < depth; k++) {
        _tile_loadd(4, a + k * 32, lda * 2);
        _tile_loadd(6, b0 + k * 512, 64);
        _tile_loadd(7, b1 + k * 512, 64);
        _tile_loadd(5, a + 16 * lda + k * 32, lda * 2);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}

inline void store_tiles(float *c, int ldc) {
    _tile_stored(0, c, ldc * 4);
    _tile_stored(1, c + 16, ldc * 4);
    _tile_stored(2, c + 16 * ldc, ldc * 4);
    _tile_stored(3, c + 16 * ldc + 16, ldc * 4);
}

// The step's tensors are bfloat16. With `state` the rows are left there (sums, largest logits, weights), not finished.
template <class T>
void prefill_amx(const Call<T> &c, const Item &item, int kv_head, float *state = nullptr) {
    const Layer &layer = c.layer;
    const Sequence &s = c.step.sequences[item.sequence];
    const int group = layer.group(), first_head = kv_head * group, rows = (item.last - item.first) * group;
    const int size = round_up(layer.head_size, 32), v_size = round_up(layer.v_head_size, 32);
    const int padded = round_up(rows, STRIP);

    // In floats; a bfloat16 is half of one.
    const size_t n_query = size_t(padded) * size / 2, n_sum = size_t(padded) * v_size, n_keys = PANEL_AMX * size / 2;
    const size_t n_values = PANEL_AMX * v_size / 2, n_x = STRIP * PANEL_AMX;
    float *memory = Scratch::mine().floats(n_query + n_sum + n_keys + n_values + n_x + n_x / 2 + 2 * padded);
    auto *query = reinterpret_cast<bfloat16 *>(memory);
    float *sum = memory + n_query;
    auto *keys = reinterpret_cast<bfloat16 *>(sum + n_sum), *values = reinterpret_cast<bfloat16 *>(sum + n_sum + n_keys);
    float *x = sum + n_sum + n_keys + n_values, *largest = x + n_x + n_x / 2, *weight = largest + padded;
    auto *weights = reinterpret_cast<bfloat16 *>(x + n_x);

    std::memset(query, 0, n_query * 4);
    for (int r = 0; r < rows; r++)
        std::memcpy(query + size_t(r) * size, c.query.at(s.query_start + item.first + r / group, first_head + r % group),
                    layer.head_size * sizeof(bfloat16));
    std::fill(sum, sum + n_sum, 0.f);
    std::fill(largest, largest + padded, -INFINITE);
    std::fill(weight, weight + padded, 0.f);
    const TileConfig config;
    _tile_loadconfig(&config);

    for (int from = item.low / PANEL_AMX * PANEL_AMX; from < item.high; from += PANEL_AMX) {
        const int begin = std::max(from, item.low), end = std::min(from + PANEL_AMX, item.high);
        const T *key_rows[PANEL_AMX] = {}, *value_rows[PANEL_AMX] = {};
        c.keys.rows(c.step, s, kv_head, begin, end - begin, key_rows + (begin - from));
        c.values.rows(c.step, s, kv_head, begin, end - begin, value_rows + (begin - from));
        const int width = round_up(end - from, 32);
        pack_keys(key_rows, width, layer.head_size, keys);
        pack_values(value_rows, width, layer.v_head_size, values);

        for (int strip = 0; strip < rows; strip += STRIP) {
            const int here = std::min(STRIP, rows - strip);
            const int first = item.first + strip / group, last = item.first + (strip + here - 1) / group;
            int low, high, ignored, all_from, all_to;
            c.step.visible(s, first, low, all_to);
            c.step.visible(s, last, all_from, high);
            if (high <= from || low >= end) continue;
            const int columns = std::min(width, round_up(high - from, 32));
            const bool whole = all_from <= from && from + columns <= all_to;
            for (int n = 0; n < columns; n += 32) {
                _tile_zero(0);
                _tile_zero(1);
                _tile_zero(2);
                _tile_zero(3);
                const bfloat16 *b = keys + size_t(n) * size;
                multiply_tiles(query + size_t(strip) * size, size, b, b + 16 * size, size / 32);
                store_tiles(x + n, PANEL_AMX);
            }
            for (int r = 0; r < here; r++) {
                const int token = item.first + (strip + r) / group;
                if (!whole) c.step.visible(s, token, low, high);
                float *row = x + r * PANEL_AMX, &old = largest[strip + r];
                float top = logits_of_row(layer, c.scale, row, columns, from, low, high, whole, first_head + (strip + r) % group,
                                          s.position(token));
                top = std::max(top, old);
                vf base = broadcast(top == -INFINITE ? 0 : top), total{};
                for (int j = 0; j < columns; j += 32) {
                    vf p = exponential(load(row + j) - base), q = exponential(load(row + j + 16) - base);
                    total += p + q;
                    _mm512_store_si512(weights + r * PANEL_AMX + j, (__m512i)_mm512_cvtne2ps_pbh((__m512)q, (__m512)p));
                }
                if (top != old) {
                    float fade = exponential(broadcast(old) - base)[0];
                    weight[strip + r] *= fade;
                    float *o = sum + size_t(strip + r) * v_size;
                    for (int d = 0; d < v_size; d += N) store(o + d, load(o + d) * fade);
                    old = top;
                }
                weight[strip + r] += horizontal_sum(total);
            }
            for (int r = here; r < STRIP; r++) std::memset(weights + r * PANEL_AMX, 0, columns * sizeof(bfloat16));
            for (int d = 0; d < v_size; d += 32) {
                float *o = sum + size_t(strip) * v_size + d;
                _tile_loadd(0, o, v_size * 4);
                _tile_loadd(1, o + 16, v_size * 4);
                _tile_loadd(2, o + 16 * v_size, v_size * 4);
                _tile_loadd(3, o + 16 * v_size + 16, v_size * 4);
                const bfloat16 *b = values + size_t(d) * width;
                multiply_tiles(weights, PANEL_AMX, b, b + 16 * width, columns / 32);
                store_tiles(o, v_size);
            }
        }
    }
    _tile_release();
    if (state) {
        for (int r = 0; r < rows; r++)
            std::memcpy(state + size_t(r) * layer.v_head_size, sum + size_t(r) * v_size, sizeof(float) * layer.v_head_size);
        std::memcpy(state + size_t(rows) * layer.v_head_size, largest, sizeof(float) * rows);
        std::memcpy(state + size_t(rows) * (layer.v_head_size + 1), weight, sizeof(float) * rows);
        return;
    }
    for (int r = 0; r < rows; r++)
        finish(c, s.query_start + item.first + r / group, first_head + r % group, sum + size_t(r) * v_size, largest[r],
               weight[r]);
}

}  // namespace hardpoint::HARDPOINT_ISA
