// One query token per sequence where tiles multiply bfloat16: keys and values go into tiles as they lie, and 8-bit numbers become bfloat16 by looking their bytes up, exactly.
#pragma once

#include "decode.h"
#include "prefill_amx.h"

#include <utility>

namespace hardpoint::HARDPOINT_ISA {

constexpr int HEADS_AMX = 8;  // of a group: two rows of weights for each

// bfloat16 of all 7-bit magnitudes, their upper bytes apart from the lower ones. Processors with AMX have the look-up.
template <class T>
struct Bytes {
    alignas(64) uint8_t upper[128] = {}, lower[128] = {};

    constexpr Bytes() {
        for (int i = 1; i < 128; i++) {
            // i = digits x 2^exponent; a float8 as `load` gives it, 1/256 of its value
            int digits = i, exponent = 0;
            if (std::is_same_v<T, float8>) digits = i < 8 ? i : 8 + i % 8, exponent = (i < 8 ? 1 : i / 8) - 18;
            for (; digits < 128; exponent--) digits *= 2;
            int bits = (exponent + 7 + 127) << 7 | (digits & 127);
            if (std::is_same_v<T, float8> && i == 127) bits = 0x7fc0;
            upper[i] = static_cast<uint8_t>(bits >> 8), lower[i] = static_cast<uint8_t>(bits & 255);
        }
    }
};

// 64 numbers, in two vectors: of each 16 the first 8, and of each 16 the others.
template <class T>
void widen(__m512i x, __m512i &first, __m512i &second) {
    static constexpr Bytes<T> bytes;
    auto find = [](const uint8_t (&table)[128], __m512i at) {
        return _mm512_permutex2var_epi8(_mm512_load_si512(table), at, _mm512_load_si512(table + 64));
    };
    const __m512i magnitude = std::is_same_v<T, int8_t> ? _mm512_abs_epi8(x) : x;
    __m512i high = find(bytes.upper, magnitude);
    if (std::is_same_v<T, int8_t>)  // -128 is the one whose magnitude has 8 bits: 0xc300
        high = _mm512_mask_mov_epi8(high, _mm512_cmpeq_epi8_mask(x, _mm512_set1_epi8(-128)), _mm512_set1_epi8(0x43));
    high = _mm512_ternarylogic_epi32(high, x, _mm512_set1_epi8(-128), 0xf8);  // with the sign
    const __m512i low = find(bytes.lower, magnitude);
    first = _mm512_unpacklo_epi8(low, high);
    second = _mm512_unpackhi_epi8(low, high);
}

// Elements of a head as tiles see them: padded, and 8-bit ones in the order that `widen` leaves.
template <class T>
struct Elements {
    static constexpr int STEP = sizeof(T) == 1 ? 64 : 32;
    static int padded(int size) { return round_up(size, STEP); }
    // Which element comes at place i.
    static int at(int i) { return sizeof(T) == 1 ? i / 64 * 64 + i % 32 / 8 * 16 + i % 64 / 32 * 8 + i % 8 : i; }
};

// A key head: its queries and what stands so far.
struct TiledHead {
    bfloat16 *query;  // tiles of 16 pairs of elements x columns
    float *sum;       // tiles of 32 elements: the columns' even elements, then their odd ones
    vf largest, weight, slope;
};

template <class T>
class TiledDecode {
  public:
    static constexpr int KEYS = 64;

    TiledDecode(const Call<T> &call, const Sequence &s, int first_head, int heads)
        : c(call), layer(call.layer), group(layer.group()), position(s.position(0)),
          size(Elements<T>::padded(layer.head_size)), v_size(Elements<T>::padded(layer.v_head_size)) {
        while (columns < group) columns *= 2;
        const size_t n_query = size_t(size) * columns / 2, n_sum = size_t(columns) * v_size;
        float *memory = Scratch::mine().floats(heads * (n_query + n_sum) + KEYS * (std::max(size, v_size) / 2 + 4 * columns));
        auto take = [&memory](size_t count) { return std::exchange(memory, memory + count); };
        copied_ = reinterpret_cast<bfloat16 *>(take(KEYS * std::max(size, v_size) / 2));
        for (float *&l : logits_) l = take(KEYS * columns);
        weights_ = reinterpret_cast<uint32_t *>(take(2 * KEYS * columns));
        for (int h = 0; h < heads; h++) {
            TiledHead &head = heads_[h];
            head.query = reinterpret_cast<bfloat16 *>(take(n_query)), head.sum = take(n_sum);
            head.largest = broadcast(-INFINITE), head.weight = head.slope = vf{};
            std::memset(head.query, 0, n_query * sizeof(float));
            std::memset(head.sum, 0, n_sum * sizeof(float));
            for (int g = 0; g < group; g++) {
                const int number = (first_head + h) * group + g;
                const char *from = c.query.at(s.query_start, number);
                for (int i = 0; i < size; i += 2)
                    if (Elements<T>::at(i) < layer.head_size)
                        std::memcpy(head.query + i * columns + 2 * g, from + 2 * Elements<T>::at(i), 4);
                if (!layer.slopes.empty())
                    for (int i = g; i < N; i += columns) head.slope[i] = layer.slopes[number];
            }
        }
        // Tiles 0, 1: logits, 2: queries. 3, 4: keys or values. 5: weights; 6, 7: sums.
        TileConfig config;
        for (int t : {0, 1, 2}) config.bytes_per_row[t] = static_cast<uint16_t>(4 * columns);
        for (int t : {5, 6, 7}) config.rows[t] = static_cast<uint8_t>(2 * columns);
        settle();
        _tile_loadconfig(&config);
    }

    // Multiplies a head's queries with a unit's keys, and fetches those that come next.
    void score(const Unit<T, KEYS> &unit, const Unit<T, KEYS> *later, float *logits) {
        const TiledHead &head = heads_[unit.head];
        const int steps = size / 32;
        // Rows that have to be copied are so before the tiles of those before them multiply: stores take their time.
        auto rows = [&](int k) { return sixteen(unit.keys, unit, k, layer.head_size, c.keys.token); };
        Sixteen next[2] = {rows(0), rows(16)};
        for (int k = 0; k < KEYS; k += 32) {
            const Sixteen first = next[0], second = next[1];
            if (k + 32 < KEYS) next[0] = rows(k + 32), next[1] = rows(k + 48);
            const T *const *soon = k + 32 < KEYS ? unit.keys + k + 32 : later ? later->keys : nullptr;
            settle();
            _tile_zero(0);
            _tile_zero(1);
            for (int d = 0; d < steps; d++) {
                _tile_loadd(2, head.query + d * 32 * columns, columns * 4);
                _tile_loadd(3, first.from + d * 32, first.stride * 2);
                _tile_dpbf16ps(0, 3, 2);
                _tile_loadd(4, second.from + d * 32, second.stride * 2);
                _tile_dpbf16ps(1, 4, 2);
                if (soon)
                    for (int i = d * 32 / steps; i < (d + 1) * 32 / steps; i++)
                        fetch(soon[i], layer.head_size * sizeof(T));
            }
            _tile_stored(0, logits + k * columns, columns * 4);
            _tile_stored(1, logits + (k + 16) * columns, columns * 4);
            settle();
        }
    }

    // Turns logits into weights, and fades what was summed before.
    void weigh(const Unit<T, KEYS> &unit, float *logits) {
        constexpr float LOG2_E = 1.44269504f;
        TiledHead &head = heads_[unit.head];
        float factor = c.scale;
        vf largest = broadcast(-INFINITE);
        if (layer.soft_cap == 0 && layer.slopes.empty() && unit.count == KEYS && c.scale > 0) {
            for (int i = 0; i < KEYS * columns; i += N) largest = larger(load(logits + i), largest);
            largest *= factor;
        } else {
            vi key;
            for (int i = 0; i < N; i++) key[i] = i / columns;
            for (int i = 0; i < KEYS * columns; i += N, key += N / columns) {
                vf x = load(logits + i) * factor;
                if (layer.soft_cap > 0) x = hyperbolic_tangent(x / layer.soft_cap) * layer.soft_cap;
                if (!layer.slopes.empty()) x += head.slope * __builtin_convertvector(key + (unit.from - position), vf);
                x = key < unit.count ? x : broadcast(-INFINITE);
                store(logits + i, x);
                largest = larger(x, largest);
            }
            factor = 1;
        }
        largest = larger(largest, head.largest);
        for (int step = columns; step < N; step *= 2) largest = larger(largest, turned(largest, step));
        const vf base = largest == broadcast(-INFINITE) ? vf{} : largest, less = base * LOG2_E;
        if (_mm512_cmp_ps_mask((__m512)largest, (__m512)head.largest, _CMP_NEQ_UQ)) {
            const vf fade = exponential(head.largest - base);
            head.weight *= fade;
            head.largest = largest;
            float *row = head.sum;
            for (int i = 0; i < v_size / 32; i++)
                for (int r = 0; r < 2 * columns; r++, row += N) store(row, load(row) * fade[r % columns]);
        }
        // A row of sixteen keys' weights for each column, as the lower halves of pairs for the even elements of values
        // and the upper ones for the odd.
        const __m512i half = _mm512_set1_epi32(0x8000), upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
        for (int k = 0; k < KEYS; k += 16) {
            __m512i rows[MOST_COLUMNS];
            for (int i = 0; i < columns; i++) {
                const vf p = power_of_two(load(logits + k * columns + i * N) * (factor * LOG2_E) - less);
                head.weight += p;
                rows[i] = _mm512_add_epi32((__m512i)p, half);
            }
            separate(rows);
            uint32_t *to = weights_ + 2 * k * columns;
            for (int i = 0; i < columns; i++) {
                _mm512_store_si512(to + i * N, _mm512_srli_epi32(rows[i], 16));
                _mm512_store_si512(to + (columns + i) * N, _mm512_and_si512(rows[i], upper));
            }
        }
    }

    // Adds a unit's values. A row of values is taken as pairs of neighbours, of which one is multiplied with zero: so
    // values need no packing. (An infinite one makes its neighbour no number.)
    void mix(const Unit<T, KEYS> &unit, const Unit<T, KEYS> *later) {
        const TiledHead &head = heads_[unit.head];
        Sixteen rows[KEYS / 16];
        for (int i = 0; i < KEYS / 16; i++) rows[i] = sixteen(unit.values, unit, i * 16, layer.v_head_size, c.values.token);
        settle();
        for (int d = 0; d < v_size; d += 64) {
            const bool two = d + 32 < v_size;
            float *sum = head.sum + d * columns, *next = sum + 32 * columns;
            _tile_loadd(6, sum, 64);
            if (two) _tile_loadd(7, next, 64);
            for (int i = 0; i < KEYS / 16; i++) {
                _tile_loadd(5, weights_ + 32 * i * columns, 64);
                _tile_loadd(3, rows[i].from + d, rows[i].stride * 2);
                _tile_dpbf16ps(6, 5, 3);
                if (two) {
                    _tile_loadd(4, rows[i].from + d + 32, rows[i].stride * 2);
                    _tile_dpbf16ps(7, 5, 4);
                }
                const T *const *soon = i + 1 < KEYS / 16 ? unit.values + 16 * (i + 1) : later ? later->values : nullptr;
                if (d == 0 && soon)
                    for (int k = 0; k < 16; k++) fetch(soon[k], layer.v_head_size * sizeof(T));
            }
            _tile_stored(6, sum, 64);
            if (two) _tile_stored(7, next, 64);
        }
        settle();
    }

    // Leaves sum, largest logit and weight of each head of a group.
    void finish(int number, float *to) const {
        const TiledHead &head = heads_[number];
        float *largest = to + size_t(group) * layer.v_head_size, *weight = largest + group;
        for (int g = 0; g < group; g++) {
            for (int i = 0; i < v_size; i++)
                if (Elements<T>::at(i) < layer.v_head_size)
                    to[g * layer.v_head_size + Elements<T>::at(i)] =
                        head.sum[(i / 32 * 2 * columns + i % 2 * columns + g) * N + i % 32 / 2];
            largest[g] = head.largest[g];
            weight[g] = 0;
            for (int i = g; i < N; i += columns) weight[g] += head.weight[i];
        }
    }

    float *logits(int i) { return logits_[i % 2]; }

  private:
    static constexpr int MOST_COLUMNS = HEADS_AMX;
    struct Sixteen {
        const bfloat16 *from;
        ptrdiff_t stride;
    };

    // Sixteen rows as tiles take them: where they lie, or else copied, widened and padded. Missing ones are zeros.
    Sixteen sixteen(const T *const *rows, const Unit<T, KEYS> &unit, int first, int elements, ptrdiff_t token) {
        const int width = Elements<T>::padded(elements);
        if constexpr (sizeof(T) == 2)
            if (unit.straight[first / 16] && width == elements) return {rows[first], token};
        const int there = std::clamp(unit.count - first, 0, 16);
        if (there < 16) std::memset(copied_ + first * width, 0, size_t(16) * width * sizeof(bfloat16));
        for (int d = 0; d < width; d += Elements<T>::STEP) {
            const int left = elements - d;
            const __mmask32 pairs = left >= 32 ? ~0u : (1u << left) - 1;
            [[maybe_unused]] const __mmask64 bytes = left >= 64 ? ~0ull : (1ull << left) - 1;
            for (int k = first; k < first + there; k++) {
                bfloat16 *to = copied_ + k * width + d;
                if constexpr (sizeof(T) == 2) {
                    _mm512_store_si512(to, _mm512_maskz_loadu_epi16(pairs, rows[k] + d));
                } else {
                    __m512i low, high;
                    widen<T>(_mm512_maskz_loadu_epi8(bytes, rows[k] + d), low, high);
                    _mm512_store_si512(to, low);
                    _mm512_store_si512(to + 32, high);
                }
            }
        }
        return {copied_ + first * width, width};
    }

    static vf turned(vf v, int step) {
        const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        return (vf)_mm512_permutexvar_ps(_mm512_add_epi32(lane, _mm512_set1_epi32(step)), (__m512)v);
    }

    // (key, column) become (column, key): even and odd columns come apart, again and again.
    void separate(__m512i (&rows)[MOST_COLUMNS]) const {
        const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
        auto part = [&](int at, int width) {
            __m512i half[MOST_COLUMNS];
            for (int i = 0; i < width / 2; i++) {
                half[i] = _mm512_permutex2var_epi32(rows[at + 2 * i], even, rows[at + 2 * i + 1]);
                half[width / 2 + i] = _mm512_permutex2var_epi32(rows[at + 2 * i], odd, rows[at + 2 * i + 1]);
            }
            for (int i = 0; i < width; i++) rows[at + i] = half[i];
        };
        for (int width = columns; width > 1; width /= 2)
            for (int at = 0; at < columns; at += width) part(at, width);
        // Which leaves column i where the bits of i are in the other order.
        if (columns == 4) std::swap(rows[1], rows[2]);
        if (columns == 8) std::swap(rows[1], rows[4]), std::swap(rows[3], rows[6]);
    }

    const Call<T> &c;
    const Layer &layer;
    const int group, position, size, v_size;
    int columns = 1;
    bfloat16 *copied_;
    float *logits_[2];
    uint32_t *weights_;
    TiledHead heads_[MOST_TOGETHER];
};

// As `decode`, for queries of bfloat16 and at most HEADS_AMX heads in a group. While vectors weigh the keys of one head,
// tiles multiply the next one's.
template <class T>
void decode_amx(const Call<T> &c, const Item &item, int first_head, int heads, float *state, size_t stride) {
    using Tiled = TiledDecode<T>;
    using Keys = Unit<T, Tiled::KEYS>;
    Tiled tiled(c, c.step.sequences[item.sequence], first_head, heads);
    const Keys *last = nullptr;
    int number = 0;
    auto end = [&](const Keys *next) {
        if (last == nullptr) return;
        tiled.weigh(*last, tiled.logits(number - 1));
        tiled.mix(*last, next);
    };
    each_unit<Tiled::KEYS, 1>(c, item, first_head, heads, [&](const Keys &unit, const Keys *later) {
        tiled.score(unit, later, tiled.logits(number));
        end(&unit);
        last = &unit, number++;
    });
    end(nullptr);
    _tile_release();
    for (int h = 0; h < heads; h++) tiled.finish(h, state + h * stride);
}

}  // namespace hardpoint::HARDPOINT_ISA
