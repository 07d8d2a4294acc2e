// One query token per sequence where tiles multiply bfloat16: keys and values go into tiles as they lie, and 8-bit numbers become bfloat16 by looking their bytes up, exactly.
#pragma once

#include "decode.h"
#include "prefill_amx.h"

#include <utility>

namespace hardpoint::HARDPOINT_ISA {

constexpr int HEADS_AMX = 8;  // of a group: two rows of weights for each

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

// A key head: its queries and what stands so far.
struct TiledHead {
    char *query;  // tiles of 64 bytes of elements x columns
    float *sum;   // for tiles of 64 bytes of elements: each column's every second (or fourth), then the next
    vf largest, weight, slope;
    vf unit;  // of the queries, where those are split
};

template <class T>
class TiledDecode {
  public:
    static constexpr int KEYS = 64, LEVELS = Elements<T>::LEVELS, PER_LANE = Elements<T>::PER_LANE;
    static constexpr bool SPLIT = Elements<T>::SPLIT;
    using Tile = typename Elements<T>::Tiled;
    struct Sixteen {
        const Tile *from;
        ptrdiff_t stride;
    };

    TiledDecode(const Call<T> &call, const Sequence &s, int first_head, int heads)
        : c(call), layer(call.layer), group(layer.group()), position(s.position(0)),
          size(Elements<T>::padded(layer.head_size)), v_size(Elements<T>::padded(layer.v_head_size)) {
        while (columns < group) columns *= 2;
        const size_t n_query = size_t(size) * columns / 2, n_sum = size_t(columns) * v_size;
        const size_t n_weights = KEYS * columns * (LEVELS * PER_LANE), n_logits = KEYS * columns * LEVELS;
        const size_t n_copied = KEYS * std::max(size, v_size) / PER_LANE, n_products = 16 * N * LEVELS;
        float *memory = Scratch::mine().floats(heads * (n_query + n_sum) + n_copied + 2 * n_logits + n_weights + n_products);
        auto take = [&memory](size_t count) { return std::exchange(memory, memory + count); };
        copied_ = reinterpret_cast<Tile *>(take(n_copied));
        for (float *&l : logits_) l = take(n_logits);
        weights_ = reinterpret_cast<uint32_t *>(take(n_weights));
        products_ = reinterpret_cast<int32_t *>(take(n_products));
        for (int h = 0; h < heads; h++) {
            TiledHead &head = heads_[h];
            head.query = reinterpret_cast<char *>(take(n_query)), head.sum = take(n_sum);
            head.largest = broadcast(-INFINITE), head.weight = head.slope = vf{}, head.unit = broadcast(1);
            std::memset(head.query, 0, n_query * sizeof(float));
            std::memset(head.sum, 0, n_sum * sizeof(float));
            for (int g = 0; g < group; g++) {
                const int number = (first_head + h) * group + g;
                const char *from = c.query.at(s.query_start, number);
                if constexpr (SPLIT) split(head, reinterpret_cast<const bfloat16 *>(from), g);
                else
                    for (int i = 0; i < size; i += 2)
                        if (Elements<T>::at(i) < layer.head_size)
                            std::memcpy(head.query + 2 * i * columns + 4 * g, from + 2 * Elements<T>::at(i), 4);
                if (!layer.slopes.empty())
                    for (int i = g; i < N; i += columns) head.slope[i] = layer.slopes[number];
            }
        }
        // Tiles 0, 1: logits, 2: queries. 3, 4: keys or values. 5: weights; 6, 7: sums.
        TileConfig config;
        for (int t : {0, 1, 2}) config.bytes_per_row[t] = static_cast<uint16_t>(4 * columns * LEVELS);
        for (int t : {5, 6, 7}) config.rows[t] = static_cast<uint8_t>(std::min(16, PER_LANE * columns));
        settle();
        _tile_loadconfig(&config);
    }

    // Multiplies a head's queries with a unit's keys, and fetches those that come next.
    void score(const Unit<T, KEYS> &unit, const Unit<T, KEYS> *later, float *logits) {
        const TiledHead &head = heads_[unit.head];
        constexpr int STEP = 64 / sizeof(Tile);
        const int steps = size / STEP, row = columns * LEVELS;
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
                _tile_loadd(2, head.query + d * 64 * row, row * 4);
                _tile_loadd(3, first.from + d * STEP, first.stride * sizeof(Tile));
                _tile_loadd(4, second.from + d * STEP, second.stride * sizeof(Tile));
                if constexpr (SPLIT) {
                    _tile_dpbssd(0, 3, 2);
                    _tile_dpbssd(1, 4, 2);
                } else {
                    _tile_dpbf16ps(0, 3, 2);
                    _tile_dpbf16ps(1, 4, 2);
                }
                if (soon)
                    for (int i = d * 32 / steps; i < (d + 1) * 32 / steps; i++)
                        fetch(soon[i], layer.head_size * sizeof(T));
            }
            _tile_stored(0, logits + k * row, row * 4);
            _tile_stored(1, logits + (k + 16) * row, row * 4);
            settle();
        }
    }

    // Turns logits into weights, and fades what was summed before.
    void weigh(const Unit<T, KEYS> &unit, float *logits) {
        constexpr float LOG2_E = 1.44269504f;
        TiledHead &head = heads_[unit.head];
        float factor = c.scale;
        vf largest = broadcast(-INFINITE);
        if constexpr (SPLIT) join(logits, head.unit);
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
        // A row of sixteen keys' weights for each column and each place within a lane, where the other places are zero.
        for (int k = 0; k < KEYS; k += 16) {
            __m512i rows[HEADS_AMX];
            for (int i = 0; i < columns; i++) {
                const vf p = power_of_two(load(logits + k * columns + i * N) * (factor * LOG2_E) - less);
                head.weight += p;
                if constexpr (SPLIT) rows[i] = _mm512_cvtps_epi32((__m512)smaller(p, broadcast(1)) * 65535.f);
                else rows[i] = _mm512_add_epi32((__m512i)p, _mm512_set1_epi32(0x8000));
            }
            separate(rows);
            uint32_t *to = weights_ + LEVELS * PER_LANE * k * columns;
            for (int i = 0; i < columns; i++) {
                if constexpr (SPLIT) {
                    const __m512i high = _mm512_srli_epi32(rows[i], 8), low = _mm512_and_si512(rows[i], _mm512_set1_epi32(255));
                    for (int j = 0; j < 4; j++) {
                        _mm512_store_si512(to + (j * columns + i) * N, _mm512_slli_epi32(high, 8 * j));
                        _mm512_store_si512(to + ((4 + j) * columns + i) * N, _mm512_slli_epi32(low, 8 * j));
                    }
                } else {
                    _mm512_store_si512(to + i * N, _mm512_srli_epi32(rows[i], 16));
                    _mm512_store_si512(to + (columns + i) * N,
                                       _mm512_and_si512(rows[i], _mm512_set1_epi32(static_cast<int>(0xffff0000))));
                }
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
        if constexpr (SPLIT) return mix_split(rows, unit, later);
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

    void mix_split(const Sixteen (&rows)[KEYS / 16], const Unit<T, KEYS> &unit, const Unit<T, KEYS> *later) {
        const TiledHead &head = heads_[unit.head];
        const int lines = 4 * columns, together = std::min(16, lines);
        float *sum = head.sum;
        for (int d = 0; d < v_size; d += 64)
            for (int line = 0; line < lines; line += together, sum += together * N) {
                _tile_zero(6);
                _tile_zero(7);
                for (int i = 0; i < KEYS / 16; i++) {
                    const uint32_t *weights = weights_ + 128 * i * columns + line * N;
                    _tile_loadd(3, rows[i].from + d, rows[i].stride);
                    _tile_loadd(5, weights, 64);
                    _tile_dpbusd(6, 5, 3);
                    _tile_loadd(5, weights + lines * N, 64);
                    _tile_dpbusd(7, 5, 3);
                    const T *const *soon = i + 1 < KEYS / 16 ? unit.values + 16 * (i + 1) : later ? later->values : nullptr;
                    if (d == 0 && line == 0 && soon)
                        for (int k = 0; k < 16; k++) fetch(soon[k], layer.v_head_size);
                }
                _tile_stored(6, products_, 64);
                _tile_stored(7, products_ + 16 * N, 64);
                settle();
                for (int r = 0; r < together; r++) {
                    const vf high = whole(products_ + r * N), low = whole(products_ + (16 + r) * N);
                    store(sum + r * N, load(sum + r * N) + (high * 256.f + low) * (1 / 65535.f));
                }
            }
    }

    // Leaves sum, largest logit and weight of each head of a group.
    void finish(int number, float *to) const {
        const TiledHead &head = heads_[number];
        float *largest = to + size_t(group) * layer.v_head_size, *weight = largest + group;
        for (int g = 0; g < group; g++) {
            for (int i = 0; i < v_size; i++)
                if (Elements<T>::at(i) < layer.v_head_size)
                    to[g * layer.v_head_size + Elements<T>::at(i)] =
                        head.sum[((i / (N * PER_LANE) * PER_LANE + i % PER_LANE) * columns + g) * N + i / PER_LANE % N];
            largest[g] = head.largest[g];
            weight[g] = 0;
            for (int i = g; i < N; i += columns) weight[g] += head.weight[i];
        }
    }

    float *logits(int i) { return logits_[i % 2]; }

  private:

    // Sixteen rows as tiles take them: where they lie, or else copied, widened and padded. Missing ones are zeros.
    Sixteen sixteen(const T *const *rows, const Unit<T, KEYS> &unit, int first, int elements, ptrdiff_t token) {
        const int width = Elements<T>::padded(elements);
        if constexpr (std::is_same_v<T, Tile>)
            if (unit.straight[first / 16] && width == elements) return {rows[first], token};
        const int there = std::clamp(unit.count - first, 0, 16);
        if (there < 16) std::memset(copied_ + first * width, 0, size_t(16) * width * sizeof(Tile));
        for (int d = 0; d < width; d += Elements<T>::STEP) {
            const int left = elements - d;
            const __mmask32 pairs = left >= 32 ? ~0u : (1u << left) - 1;
            [[maybe_unused]] const __mmask64 bytes = left >= 64 ? ~0ull : (1ull << left) - 1;
            for (int k = first; k < first + there; k++) {
                Tile *to = copied_ + k * width + d;
                if constexpr (sizeof(T) == 2) {
                    _mm512_store_si512(to, _mm512_maskz_loadu_epi16(pairs, rows[k] + d));
                } else if constexpr (SPLIT) {
                    _mm512_store_si512(to, _mm512_maskz_loadu_epi8(bytes, rows[k] + d));
                } else {
                    __m512i low, high;
                    widen(_mm512_maskz_loadu_epi8(bytes, rows[k] + d), low, high);
                    _mm512_store_si512(to, low);
                    _mm512_store_si512(to + 32, high);
                }
            }
        }
        return {copied_ + first * width, width};
    }

    static vf whole(const int32_t *p) { return (vf)_mm512_cvtepi32_ps(_mm512_load_si512(p)); }

    // A query as two of int8: its elements are unit x (first + second / 254).
    void split(TiledHead &head, const bfloat16 *from, int g) const {
        alignas(64) float row[MOST_ELEMENTS];
        float most = 0;
        bool finite = true;
        for (int i = 0; i < layer.head_size; i += N) store(row + i, load(from + i));
        for (int i = 0; i < layer.head_size; i++) {
            most = std::max(most, std::fabs(row[i]));
            finite &= std::fabs(row[i]) < INFINITE;
        }
        const float unit = most > 0 ? most / 127 : 1;
        for (int i = g; i < N; i += columns) head.unit[i] = finite ? unit : std::numeric_limits<float>::quiet_NaN();
        if (!finite) return;
        for (int i = 0; i < layer.head_size; i++) {
            const float first = std::nearbyint(row[i] / unit), second = std::nearbyint((row[i] / unit - first) * 254);
            char *to = head.query + i / 4 * 8 * columns + i % 4;
            to[4 * g] = static_cast<char>(static_cast<int>(first));
            to[4 * (columns + g)] = static_cast<char>(static_cast<int>(second));
        }
    }

    // Products with both parts of the queries become logits, in place.
    void join(float *logits, vf unit) const {
        __m512i at;
        for (int i = 0; i < N; i++) reinterpret_cast<int *>(&at)[i] = i / columns * 2 * columns + i % columns;
        const __m512i further = _mm512_add_epi32(at, _mm512_set1_epi32(columns));
        for (int i = 0; i < KEYS * columns; i += N) {
            const __m512i x = _mm512_load_si512(logits + 2 * i), y = _mm512_load_si512(logits + 2 * i + N);
            const vf first = (vf)_mm512_cvtepi32_ps(_mm512_permutex2var_epi32(x, at, y));
            const vf second = (vf)_mm512_cvtepi32_ps(_mm512_permutex2var_epi32(x, further, y));
            store(logits + i, (first + second * (1 / 254.f)) * unit);
        }
    }

    static vf turned(vf v, int step) {
        const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        return (vf)_mm512_permutexvar_ps(_mm512_add_epi32(lane, _mm512_set1_epi32(step)), (__m512)v);
    }

    // (key, column) become (column, key): even and odd columns come apart, again and again.
    void separate(__m512i (&rows)[HEADS_AMX]) const {
        const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
        auto part = [&](int at, int width) {
            __m512i half[HEADS_AMX];
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
    Tile *copied_;
    int32_t *products_;
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
        if (later == nullptr) end(nullptr);  // here, where the unit lives
    });
    _tile_release();
    for (int h = 0; h < heads; h++) tiled.finish(h, state + h * stride);
}

}  // namespace hardpoint::HARDPOINT_ISA
