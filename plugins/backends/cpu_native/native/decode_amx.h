// One query token per sequence where tiles multiply bfloat16: keys and values go into tiles as they lie, and 8-bit numbers
// become bfloat16 by looking their bytes up, exactly.
#pragma once

#include <utility>

#include "tiles.h"
#include "units.h"

namespace hardpoint::HARDPOINT_ISA {

constexpr int HEADS_AMX = 8;  // of a group: two rows of weights for each

// A key head: its queries and what stands so far.
struct TiledHead {
    char *query;  // tiles of 64 bytes of elements x columns
    float *sum;   // for tiles of 64 bytes of elements: each column's every second (or fourth), then the next
    vf largest, weight, slope;
    vf unit;  // of the queries, where those are split
};

// `COLUMNS` is the heads of a group, rounded up to a power of two.
template <class T, int COLUMNS>
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
        const size_t n_query = size_t(size) * COLUMNS / 2, n_sum = size_t(COLUMNS) * v_size;
        const size_t n_weights = KEYS * COLUMNS * (LEVELS * PER_LANE), n_logits = KEYS * COLUMNS * LEVELS;
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
                            std::memcpy(head.query + 2 * i * COLUMNS + 4 * g, from + 2 * Elements<T>::at(i), 4);
                if (!layer.slopes.empty())
                    for (int i = g; i < N; i += COLUMNS) head.slope[i] = layer.slopes[number];
            }
        }
        // Tiles 0, 1: logits, 2: queries. 3, 4: keys or values. 5: weights; 6, 7: sums.
        TileConfig config;
        for (int t : {0, 1, 2}) config.bytes_per_row[t] = static_cast<uint16_t>(4 * COLUMNS * LEVELS);
        for (int t : {5, 6, 7}) config.rows[t] = static_cast<uint8_t>(std::min(16, PER_LANE * COLUMNS));
        settle();
        _tile_loadconfig(&config);
    }

    // Multiplies a head's queries with a unit's keys.
    void score(const Unit<T> &unit, Fetching<T, KEYS> &fetching, float *logits) {
        const TiledHead &head = heads_[unit.head];
        constexpr int STEP = 64 / sizeof(Tile);
        const int steps = size / STEP, row = COLUMNS * LEVELS;
        // Rows that have to be copied are so before the tiles of those before them multiply: stores take their time.
        auto rows = [&](int k) { return sixteen(unit.keys, unit, k, layer.head_size, c.keys.token, fetching); };
        Sixteen next[2] = {rows(0), rows(16)};
        for (int k = 0; k < KEYS; k += 32) {
            const Sixteen first = next[0], second = next[1];
            if (k + 32 < KEYS) next[0] = rows(k + 32), next[1] = rows(k + 48);
            settle();
            _tile_zero(0);
            _tile_zero(1);
            for (int d = 0; d < steps; d++) {
                _tile_loadd(2, head.query + d * 64 * row, row * 4);
                _tile_loadd(3, first.from + d * STEP, first.stride * sizeof(Tile));
                fetching.step();
                _tile_loadd(4, second.from + d * STEP, second.stride * sizeof(Tile));
                fetching.step();
                if constexpr (SPLIT) _tile_dpbssd(0, 3, 2);
                else _tile_dpbf16ps(0, 3, 2);
                fetching.step();
                if constexpr (SPLIT) _tile_dpbssd(1, 4, 2);
                else _tile_dpbf16ps(1, 4, 2);
                fetching.step();
            }
            _tile_stored(0, logits + k * row, row * 4);
            _tile_stored(1, logits + (k + 16) * row, row * 4);
            settle();
        }
    }

    // Turns logits into weights, and fades what was summed before.
    void weigh(const Unit<T> &unit, Fetching<T, KEYS> &fetching, float *logits) {
        constexpr float LOG2_E = 1.44269504f;
        TiledHead &head = heads_[unit.head];
        float factor = c.scale;
        vf largest = broadcast(-INFINITE);
        if constexpr (SPLIT) join(logits, head.unit);
        if (layer.soft_cap == 0 && layer.slopes.empty() && unit.count == KEYS && c.scale > 0) {
            for (int i = 0; i < KEYS * COLUMNS; i += N) largest = larger(load(logits + i), largest);
            largest *= factor;
        } else {
            vi key;
            for (int i = 0; i < N; i++) key[i] = i / COLUMNS;
            for (int i = 0; i < KEYS * COLUMNS; i += N, key += N / COLUMNS) {
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
        for (int step = COLUMNS; step < N; step *= 2) largest = larger(largest, turned(largest, step));
        const vf base = largest == broadcast(-INFINITE) ? vf{} : largest, less = base * LOG2_E;
        if (_mm512_cmp_ps_mask((__m512)largest, (__m512)head.largest, _CMP_NEQ_UQ)) {
            const vf fade = exponential(head.largest - base);
            head.weight *= fade;
            head.largest = largest;
            float *row = head.sum;
            for (int i = 0; i < v_size / 32; i++)
                for (int r = 0; r < 2 * COLUMNS; r++, row += N) store(row, load(row) * fade[r % COLUMNS]);
        }
        // A row of sixteen keys' weights for each column and each place within a lane, where the other places are zero.
        for (int k = 0; k < KEYS; k += 16) {
            __m512i rows[COLUMNS];
#pragma GCC unroll 8
            for (int i = 0; i < COLUMNS; i++) {
                if (i % 2 == 0) fetching.step();
                const vf p = power_of_two(load(logits + k * COLUMNS + i * N) * (factor * LOG2_E) - less);
                head.weight += p;
                if constexpr (SPLIT) rows[i] = _mm512_cvtps_epi32((__m512)smaller(p, broadcast(1)) * 65535.f);
                else rows[i] = _mm512_add_epi32((__m512i)p, _mm512_set1_epi32(0x8000));
            }
            separate(rows);
            uint32_t *to = weights_ + LEVELS * PER_LANE * k * COLUMNS;
            for (int i = 0; i < COLUMNS; i++) {
                if constexpr (SPLIT) {
                    const __m512i high = _mm512_srli_epi32(rows[i], 8), low = _mm512_and_si512(rows[i], _mm512_set1_epi32(255));
                    for (int j = 0; j < 4; j++) {
                        _mm512_store_si512(to + (j * COLUMNS + i) * N, _mm512_slli_epi32(high, 8 * j));
                        _mm512_store_si512(to + ((4 + j) * COLUMNS + i) * N, _mm512_slli_epi32(low, 8 * j));
                    }
                } else {
                    _mm512_store_si512(to + i * N, _mm512_srli_epi32(rows[i], 16));
                    _mm512_store_si512(to + (COLUMNS + i) * N,
                                       _mm512_and_si512(rows[i], _mm512_set1_epi32(static_cast<int>(0xffff0000))));
                }
            }
        }
    }

    // Adds a unit's values. A row of values is taken as pairs of neighbours, of which one is multiplied with zero: so
    // values need no packing. An infinite one makes its neighbour no number: then vectors go through the item again.
    void mix(const Unit<T> &unit, Fetching<T, KEYS> &fetching) {
        const TiledHead &head = heads_[unit.head];
        Sixteen rows[KEYS / 16];
        for (int i = 0; i < KEYS / 16; i++)
            rows[i] = sixteen(unit.values, unit, i * 16, layer.v_head_size, c.values.token, fetching);
        settle();
        if constexpr (SPLIT) return mix_split(head, rows, fetching);
        for (int d = 0; d < v_size; d += 64) {
            const bool two = d + 32 < v_size;
            float *sum = head.sum + d * COLUMNS, *next = sum + 32 * COLUMNS;
            _tile_loadd(6, sum, 64);
            if (two) _tile_loadd(7, next, 64);
            for (int i = 0; i < KEYS / 16; i++) {
                _tile_loadd(5, weights_ + 32 * i * COLUMNS, 64);
                _tile_loadd(3, rows[i].from + d, rows[i].stride * 2);
                fetching.step();
                _tile_dpbf16ps(6, 5, 3);
                fetching.step();
                if (!two) continue;
                _tile_loadd(4, rows[i].from + d + 32, rows[i].stride * 2);
                fetching.step();
                _tile_dpbf16ps(7, 5, 4);
                fetching.step();
            }
            _tile_stored(6, sum, 64);
            if (two) _tile_stored(7, next, 64);
        }
        settle();
    }

    void mix_split(const TiledHead &head, const Sixteen (&rows)[KEYS / 16], Fetching<T, KEYS> &fetching) {
        constexpr int LINES = 4 * COLUMNS, TOGETHER = std::min(16, LINES);
        float *sum = head.sum;
        for (int d = 0; d < v_size; d += 64)
            for (int line = 0; line < LINES; line += TOGETHER, sum += TOGETHER * N) {
                _tile_zero(6);
                _tile_zero(7);
                for (int i = 0; i < KEYS / 16; i++) {
                    const uint32_t *weights = weights_ + 128 * i * COLUMNS + line * N;
                    _tile_loadd(3, rows[i].from + d, rows[i].stride);
                    fetching.step();
                    _tile_loadd(5, weights, 64);
                    _tile_dpbusd(6, 5, 3);
                    fetching.step();
                    _tile_loadd(5, weights + LINES * N, 64);
                    _tile_dpbusd(7, 5, 3);
                    fetching.step();
                }
                _tile_stored(6, products_, 64);
                _tile_stored(7, products_ + 16 * N, 64);
                settle();
                for (int r = 0; r < TOGETHER; r++) {
                    const vf high = whole(products_ + r * N), low = whole(products_ + (16 + r) * N);
                    store(sum + r * N, load(sum + r * N) + (high * 256.f + low) * (1 / 65535.f));
                }
            }
    }

    // How often a unit comes to where the next one is fetched.
    int fetching_steps() const {
        const int scoring = KEYS / 16 * 2 * (size * int(sizeof(Tile)) / 64), weighing = KEYS / 16 * ((COLUMNS + 1) / 2);
        const int copying = sizeof(T) < sizeof(Tile) ? KEYS / 2 : 0;
        if constexpr (SPLIT) return scoring + weighing + KEYS / 16 * 3 * (v_size / 64) * std::max(1, COLUMNS / 4);
        return scoring + weighing + copying + KEYS / 16 * 2 * (v_size / 32);
    }

    // Leaves sum, largest logit and weight of each head of a group.
    void finish(int number, float *to) const {
        const TiledHead &head = heads_[number];
        float *largest = to + size_t(group) * layer.v_head_size, *weight = largest + group;
        for (int g = 0; g < group; g++) {
            for (int i = 0; i < v_size; i++)
                if (Elements<T>::at(i) < layer.v_head_size)
                    to[g * layer.v_head_size + Elements<T>::at(i)] =
                        head.sum[((i / (N * PER_LANE) * PER_LANE + i % PER_LANE) * COLUMNS + g) * N + i / PER_LANE % N];
            largest[g] = head.largest[g];
            weight[g] = 0;
            for (int i = g; i < N; i += COLUMNS) weight[g] += head.weight[i];
        }
    }

    float *logits(int i) { return logits_[i % 2]; }

  private:
    // Sixteen rows as tiles take them: where they lie, or else copied, widened and padded. Missing ones are zeros.
    Sixteen sixteen(HeadRows<T> rows, const Unit<T> &unit, int first, int elements, ptrdiff_t token,
                    Fetching<T, KEYS> &fetching) {
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
                if (sizeof(T) < sizeof(Tile) && d == 0 && k % 4 == 0) fetching.step();
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
        for (int i = g; i < N; i += COLUMNS) head.unit[i] = finite ? unit : std::numeric_limits<float>::quiet_NaN();
        if (!finite) return;
        for (int i = 0; i < layer.head_size; i++) {
            const float first = std::nearbyint(row[i] / unit), second = std::nearbyint((row[i] / unit - first) * 254);
            char *to = head.query + i / 4 * 8 * COLUMNS + i % 4;
            to[4 * g] = static_cast<char>(static_cast<int>(first));
            to[4 * (COLUMNS + g)] = static_cast<char>(static_cast<int>(second));
        }
    }

    // Products with both parts of the queries become logits, in place.
    void join(float *logits, vf unit) const {
        __m512i at;
        for (int i = 0; i < N; i++) reinterpret_cast<int *>(&at)[i] = i / COLUMNS * 2 * COLUMNS + i % COLUMNS;
        const __m512i further = _mm512_add_epi32(at, _mm512_set1_epi32(COLUMNS));
        for (int i = 0; i < KEYS * COLUMNS; i += N) {
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
    static void separate(__m512i (&rows)[COLUMNS]) {
        const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
#pragma GCC unroll 3
        for (int width = COLUMNS; width > 1; width /= 2) {
            __m512i parted[COLUMNS];
#pragma GCC unroll 4
            for (int at = 0; at < COLUMNS; at += width)
#pragma GCC unroll 4
                for (int i = 0; i < width / 2; i++) {
                    const __m512i x = rows[at + 2 * i], y = rows[at + 2 * i + 1];
                    parted[at + i] = _mm512_permutex2var_epi32(x, even, y);
                    parted[at + width / 2 + i] = _mm512_permutex2var_epi32(x, odd, y);
                }
#pragma GCC unroll 8
            for (int i = 0; i < COLUMNS; i++) rows[i] = parted[i];
        }
        // Which leaves column i where the bits of i are in the other order.
        if constexpr (COLUMNS == 4) std::swap(rows[1], rows[2]);
        if constexpr (COLUMNS == 8) std::swap(rows[1], rows[4]), std::swap(rows[3], rows[6]);
    }

    const Call<T> &c;
    const Layer &layer;
    const int group, position, size, v_size;
    Tile *copied_;
    int32_t *products_;
    float *logits_[2];
    uint32_t *weights_;
    TiledHead heads_[MOST_TOGETHER];
};

// While vectors weigh the keys of one head, tiles multiply the next one's.
template <class T, int COLUMNS>
void decode_tiled(const Call<T> &c, const Item &item, int first_head, int heads, float *state, size_t stride) {
    using Tiled = TiledDecode<T, COLUMNS>;
    Tiled tiled(c, c.step.sequences[item.sequence], first_head, heads);
    const int steps = tiled.fetching_steps();
    Unit<T> last;
    int number = 0;
    auto end = [&](Fetching<T, Tiled::KEYS> &fetching) {
        if (number == 0) return;
        tiled.weigh(last, fetching, tiled.logits(number - 1));
        tiled.mix(last, fetching);
    };
    each_unit<Tiled::KEYS>(c, item, first_head, heads, [&](const Unit<T> &unit, const Unit<T> *next) {
        Fetching<T, Tiled::KEYS> fetching(c, next, steps);
        tiled.score(unit, fetching, tiled.logits(number));
        end(fetching);
        fetching.rest();
        last = unit, number++;
        if (next == nullptr) end(fetching);  // here, where the unit's rows live
    });
    _tile_release();
    for (int h = 0; h < heads; h++) tiled.finish(h, state + h * stride);
}

// As `decode`, for queries of bfloat16 and at most HEADS_AMX heads in a group.
template <class T>
void decode_amx(const Call<T> &c, const Item &item, int first_head, int heads, float *state, size_t stride) {
    const int group = c.layer.group();
    const auto run = group > 4 ? decode_tiled<T, 8> : group > 2 ? decode_tiled<T, 4> : group > 1 ? decode_tiled<T, 2> : decode_tiled<T, 1>;
    run(c, item, first_head, heads, state, stride);
}

}  // namespace hardpoint::HARDPOINT_ISA
