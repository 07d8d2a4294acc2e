// Prefill in bfloat16 with AMX: tiles of 16 rows of 64 bytes multiply, AVX-512 does the softmax between them. Keys and
// values are packed once per panel as tiles want them, pairs next to one another; weights are rounded to bfloat16.
#pragma once

#include "prefill.h"
#include "tiles.h"

namespace hardpoint::HARDPOINT_ISA {

constexpr int ROWS_AMX = 1024;  // of an item: a panel is packed once for them, and their sums fit into the second-level cache
constexpr int PANEL_AMX = 256;
constexpr int STRIP = 32;  // rows that pass through both products together

inline float single(bfloat16 x) {
    const uint32_t bits = uint32_t{x.bits} << 16;
    float y;
    std::memcpy(&y, &bits, sizeof y);
    return y;
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
            transpose(r);
            for (int i = 0; i < 16; i++) _mm512_store_si512(to + i * 32, r[i]);
        }
    }
}

// Values: tiles of 32 keys x 16 dimensions, tile (dimension block, key block) after the other.
template <class T>
void pack_values(const T *const *rows, int keys, int size, bfloat16 *to) {
    // Neighbouring lanes take in what the interleaving below puts next to one another.
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    auto part = [&](const T *row, int d) {
        return row ? _mm512_permutexvar_epi64(order, pairs(row + d, size - d)) : _mm512_setzero_si512();
    };
    const size_t block = size_t(keys) * 16;
    for (int k = 0; k < keys; k += 2) {
        bfloat16 *pair = to + k / 32 * 512 + k % 32 * 16;
        for (int d = 0; d < size; d += 32, pair += 2 * block) {
            const __m512i x = part(rows[k], d), y = part(rows[k + 1], d);
            _mm512_store_si512(pair, _mm512_unpacklo_epi16(x, y));
            _mm512_store_si512(pair + block, _mm512_unpackhi_epi16(x, y));
        }
    }
}

// Products of 32 rows with packed columns, two blocks of 16 after the other, in small steps: so that vectors can work
// on another strip between them, while the tiles multiply.
struct Products {
    const bfloat16 *a = nullptr;
    int lda = 0;
    const bfloat16 *b = nullptr;
    int b_block = 0;  // elements from one block of 16 columns to the next
    float *c = nullptr;
    int ldc = 0;
    int blocks = 0, depth = 0;  // pairs of column blocks, and steps of 32 for each
    bool add = false;
    int block = 0, k = 0;

    bool done() const { return block == blocks; }
    int left() const { return (blocks - block) * depth - k; }
    void step() {
        settle();
        float *to = c + block * 32;
        if (k == 0) {
            if (add) {
                _tile_loadd(0, to, ldc * 4);
                _tile_loadd(1, to + 16, ldc * 4);
                _tile_loadd(2, to + 16 * ldc, ldc * 4);
                _tile_loadd(3, to + 16 * ldc + 16, ldc * 4);
            } else {
                _tile_zero(0);
                _tile_zero(1);
                _tile_zero(2);
                _tile_zero(3);
            }
        }
        const bfloat16 *columns = b + size_t(block) * 2 * b_block + k * 512;
        _tile_loadd(4, a + k * 32, lda * 2);
        _tile_loadd(6, columns, 64);
        _tile_loadd(7, columns + b_block, 64);
        _tile_loadd(5, a + 16 * lda + k * 32, lda * 2);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        if (++k < depth) return;
        _tile_stored(0, to, ldc * 4);
        _tile_stored(1, to + 16, ldc * 4);
        _tile_stored(2, to + 16 * ldc, ldc * 4);
        _tile_stored(3, to + 16 * ldc + 16, ldc * 4);
        settle();
        k = 0;
        block++;
    }
};

// Takes products out of a row: all but [low, high).
inline void hide(float *row, int columns, int low, int high) {
    vi lane;
    for (int i = 0; i < N; i++) lane[i] = i;
    for (int j = 0; j < columns; j += N) {
        const vi key = lane + j;
        store(row + j, ((key >= low) & (key < high)) != 0 ? load(row + j) : broadcast(-INFINITE));
    }
}

inline float largest_of(const float *row, int columns) {
    vf most = load(row);
    for (int j = N; j < columns; j += N) most = larger(load(row + j), most);
    return horizontal_max(most);
}

// 32 rows of an item on their way through a panel.
struct Strip {
    int first_row, rows, columns;
    bool whole;  // every row sees every key of the panel
};

// Takes values that are no numbers out of what `pack_values` has packed.
inline void take_apart(bfloat16 *packed, int keys, int size, Apart &strange) {
    strange.begin(keys);
    for (int i = 0; i < keys * size; i++)
        if ((packed[i].bits & 0x7f80) == 0x7f80) {
            const int key = i % (keys * 16) / 512 * 32 + i % 512 / 32 * 2 + i % 2, element = i / (keys * 16) * 16 + i % 32 / 2;
            strange.take(key, element, single(std::exchange(packed[i], bfloat16{0})));
        }
}

// The step's tensors are bfloat16. With `state` the rows are left there (sums, largest logits, weights), not finished.
// `apart` as in `prefill`.
template <class T>
void prefill_amx(const Call<T> &c, const Item &item, int kv_head, float *state = nullptr, bool apart = false) {
    const Layer &layer = c.layer;
    const Sequence &s = c.step.sequences[item.sequence];
    const int group = layer.group(), first_head = kv_head * group, rows = (item.last - item.first) * group;
    const int size = round_up(layer.head_size, 32), v_size = round_up(layer.v_head_size, 32);
    const int padded = round_up(rows, STRIP);

    // In floats; a bfloat16 is half of one.
    const size_t n_query = size_t(padded) * size / 2, n_sum = size_t(padded) * v_size, n_keys = PANEL_AMX * size / 2;
    const size_t n_values = PANEL_AMX * v_size / 2, n_x = STRIP * PANEL_AMX;
    float *memory = Scratch::mine().floats(n_query + n_sum + n_keys + n_values + 3 * n_x + padded * (N + 1));
    auto *query = reinterpret_cast<bfloat16 *>(memory);
    float *sum = memory + n_query;
    auto *keys = reinterpret_cast<bfloat16 *>(sum + n_sum), *values = reinterpret_cast<bfloat16 *>(sum + n_sum + n_keys);
    // Two strips are under way at once, so there are two of each.
    float *logits[2] = {sum + n_sum + n_keys + n_values, sum + n_sum + n_keys + n_values + n_x};
    auto *weights0 = reinterpret_cast<bfloat16 *>(logits[1] + n_x);
    bfloat16 *weights[2] = {weights0, weights0 + n_x};
    float *weight = logits[1] + 2 * n_x, *bases = weight + padded * N;  // a row's weights are summed in N parts

    std::memset(query, 0, n_query * 4);
    for (int r = 0; r < rows; r++)
        std::memcpy(query + size_t(r) * size, c.query.at(s.query_start + item.first + r / group, first_head + r % group),
                    layer.head_size * sizeof(bfloat16));
    std::fill(sum, sum + n_sum, 0.f);
    std::fill(weight, weight + padded * N, 0.f);
    std::fill(bases, bases + padded, -INFINITE);
    const TileConfig config;
    settle();
    _tile_loadconfig(&config);
    constexpr float LOG2_E = 1.44269504f;
    Apart strange(apart ? PANEL_AMX : 0, v_size);
    const bool plain = layer.soft_cap == 0 && layer.slopes.empty() && c.scale > 0;

    for (int from = item.low / PANEL_AMX * PANEL_AMX; from < item.high; from += PANEL_AMX) {
        const int begin = std::max(from, item.low), end = std::min(from + PANEL_AMX, item.high);
        const T *key_rows[PANEL_AMX] = {}, *value_rows[PANEL_AMX] = {};
        c.keys.rows(c.step, s, kv_head, begin, end - begin, key_rows + (begin - from));
        c.values.rows(c.step, s, kv_head, begin, end - begin, value_rows + (begin - from));
        const int width = round_up(end - from, 32);
        pack_keys(key_rows, width, layer.head_size, keys);
        pack_values(value_rows, width, layer.v_head_size, values);
        if (apart) take_apart(values, width, v_size, strange);

        Strip strips[ROWS_AMX / STRIP + 8];
        int count = 0;
        for (int row = 0; row < rows; row += STRIP) {
            const int here = std::min(STRIP, rows - row);
            int low, high, all_from, all_to;
            c.step.visible(s, item.first + row / group, low, all_to);
            c.step.visible(s, item.first + (row + here - 1) / group, all_from, high);
            if (high <= from || low >= end) continue;
            const int columns = std::min(width, round_up(high - from, 32));
            strips[count++] = {row, here, columns, all_from <= from && from + columns <= all_to};
        }
        auto score = [&](int i) {
            Products p;
            if (i >= count) return p;
            p.a = query + size_t(strips[i].first_row) * size, p.lda = size;
            p.b = keys, p.b_block = 16 * size;
            p.c = logits[i & 1], p.ldc = PANEL_AMX;
            p.blocks = strips[i].columns / 32, p.depth = size / 32;
            return p;
        };
        auto mix = [&](int i) {
            Products p;
            if (i < 0) return p;
            p.a = weights[i & 1], p.lda = PANEL_AMX;
            p.b = values, p.b_block = 16 * width;
            p.c = sum + size_t(strips[i].first_row) * v_size, p.ldc = v_size;
            p.blocks = v_size / 32, p.depth = strips[i].columns / 32, p.add = true;
            return p;
        };
        // While one strip's weights are worked out, tiles multiply the last one's with values and the next one's
        // queries with keys.
        Products before, after = score(0);
        while (!after.done()) after.step();
        for (int i = 0; i < count; i++) {
            const Strip strip = strips[i];
            before = mix(i - 1), after = score(i + 1);
            const int steps = (before.left() + after.left() + strip.rows - 1) / strip.rows;
            int due = 0;
            for (int r = 0; r < strip.rows; r++) {
                const int line = strip.first_row + r, token = item.first + line / group;
                float *row = logits[i & 1] + r * PANEL_AMX, &base = bases[line], factor = 1;
                int low = 0, high = 0;
                if (!strip.whole) c.step.visible(s, token, low, high);
                // A row is scaled alike whether others of its strip are masked or not: its bits are its own.
                if (plain) {
                    if (!strip.whole) hide(row, strip.columns, low - from, high - from);
                    factor = c.scale;
                } else {
                    logits_of_row(layer, c.scale, row, strip.columns, from, low, high, strip.whole,
                                  first_head + line % group, s.position(token));
                }
                const float times = factor * LOG2_E;
                auto weigh = [&](vf less, vf &total, vf &most) {
                    vf more{};
                    for (int j = 0; j < strip.columns; j += 32) {
                        const vf x = load(row + j), y = load(row + j + 16);
                        const vf p = power_of_two(x * times - less), q = power_of_two(y * times - less);
                        most = larger(y, larger(x, most));
                        total += p, more += q;
                        _mm512_store_si512(weights[i & 1] + r * PANEL_AMX + j,
                                           (__m512i)_mm512_cvtne2ps_pbh((__m512)q, (__m512)p));
                        // So close together that the processor has both within its sight.
                        for (due += steps * 32; due >= strip.columns; due -= strip.columns) {
                            if (!before.done()) before.step();
                            else if (!after.done()) after.step();
                        }
                    }
                    total += more;
                };
                // What is subtracted in the exponent stays as it is until a logit exceeds it by far: so most panels
                // are gone through once, without a look for the largest before.
                float *weights_so_far = weight + size_t(line) * N;
                if (base == -INFINITE) base = largest_of(row, strip.columns) * factor;
                for (;;) {
                    const vf less = broadcast(base == -INFINITE ? 0 : base * LOG2_E);
                    vf total = load(weights_so_far), most = broadcast(-INFINITE);
                    weigh(less, total, most);
                    if (base == INFINITE || !exceeds(most * times - less, FAR * LOG2_E)) {
                        store(weights_so_far, total);
                        break;
                    }
                    const float top = horizontal_max(most) * factor, fade = exponential(broadcast(base - top))[0];
                    store(weights_so_far, load(weights_so_far) * fade);
                    float *o = sum + size_t(line) * v_size;
                    for (int d = 0; d < v_size; d += N) store(o + d, load(o + d) * fade);
                    base = top;
                }
                if (!apart) continue;
                c.step.visible(s, token, low, high);
                strange.add(low - from, high - from, [&](int key) { return single(weights[i & 1][r * PANEL_AMX + key]); },
                            sum + size_t(line) * v_size);
            }
            for (int r = strip.rows; r < STRIP; r++)
                std::memset(weights[i & 1] + r * PANEL_AMX, 0, strip.columns * sizeof(bfloat16));
            while (!before.done()) before.step();
            while (!after.done()) after.step();
        }
        before = mix(count - 1);
        while (!before.done()) before.step();
    }
    _tile_release();
    // One query token sees all of its keys.
    if (!apart && !state && !finite(sum, size_t(rows) * v_size)) return prefill_amx(c, item, kv_head, nullptr, true);
    for (int r = 0; r < rows; r++) {
        const float *row = sum + size_t(r) * v_size, all = horizontal_sum(load(weight + size_t(r) * N));
        if (state) {
            std::memcpy(state + size_t(r) * layer.v_head_size, row, sizeof(float) * layer.v_head_size);
            state[size_t(rows) * layer.v_head_size + r] = bases[r];
            state[size_t(rows) * (layer.v_head_size + 1) + r] = all;
        } else {
            finish(c, s.query_start + item.first + r / group, first_head + r % group, row, bases[r], all);
        }
    }
}

}  // namespace hardpoint::HARDPOINT_ISA
