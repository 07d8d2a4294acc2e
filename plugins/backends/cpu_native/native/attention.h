// The two operators: the step's rows into the cache, and attention.
#pragma once

#include <atomic>
#include <memory>

#include "decode.h"
#include "pool.h"
#include "prefill.h"
#if defined(__AMX_BF16__)
#include "decode_amx.h"
#include "prefill_amx.h"
#endif

namespace hardpoint::HARDPOINT_ISA {

// Whether tiles multiply: bfloat16, and enough rows to fill some of a tile.
template <class T>
bool has_tiles(const Layer &layer, int rows) {
#if defined(__AMX_BF16__)
    return layer.storage == Storage::bfloat16 && !std::is_same_v<T, float> && !std::is_same_v<T, float16> && rows >= 16;
#else
    return false;
#endif
}

inline int rows_per_item(const Layer &layer, int threads, const std::vector<Sequence> &sequences) {
    int64_t rows = 0;
    for (const Sequence &s : sequences)
        if (s.num_queries > 1) rows += int64_t{s.num_queries} * layer.num_heads;
    int most = ROWS;
#if defined(__AMX_BF16__)
    if (layer.storage == Storage::bfloat16) most = ROWS_AMX;
#endif
    // At least four items for each thread, so that they end together, where that leaves enough rows to share a panel.
    return static_cast<int>(std::clamp<int64_t>(rows / (int64_t{threads} * 4), 32, most));
}

// Where a sequence was cut, each part leaves its state here, and whoever ends last puts them together, in their order.
struct Parts {
    int group, v_size;
    std::unique_ptr<float[]> memory;
    std::unique_ptr<std::atomic<int>[]> left;

    Parts(const Step &step, const Layer &layer)
        : group(layer.group()), v_size(layer.v_head_size) {
        if (step.num_merges == 0) return;
        memory.reset(new float[size_t(step.num_parts) * layer.num_kv_heads * stride()]);
        left.reset(new std::atomic<int>[size_t(step.num_merges) * layer.num_kv_heads]);
        for (const Item &item : step.items)
            if (item.merge >= 0 && item.part == 0)
                for (int h = 0; h < layer.num_kv_heads; h++)
                    left[size_t(item.merge) * layer.num_kv_heads + h].store(item.parts);
    }
    size_t stride() const { return size_t(group) * (v_size + 2); }
    float *part(int number, int kv_heads, int kv_head) { return memory.get() + (size_t(number) * kv_heads + kv_head) * stride(); }
};

// Puts the parts of a sequence together.
template <class T>
void merge(const Call<T> &c, const Item &item, int kv_head, Parts &parts) {
    const Layer &layer = c.layer;
    const int group = layer.group(), v_size = layer.v_head_size, kv_heads = layer.num_kv_heads;
    const int start = c.step.part_start[item.merge], token = c.step.sequences[item.sequence].query_start;
    thread_local Scratch merged;
    float *total = merged.floats(v_size);
    for (int g = 0; g < group; g++) {
        float top = -INFINITE, weight = 0;
        for (int i = 0; i < item.parts; i++)
            top = std::max(top, parts.part(start + i, kv_heads, kv_head)[size_t(group) * v_size + g]);
        std::fill(total, total + v_size, 0.f);
        for (int i = 0; i < item.parts; i++) {
            const float *from = parts.part(start + i, kv_heads, kv_head);
            float factor = top == -INFINITE ? 1 : std::exp(from[size_t(group) * v_size + g] - top);
            weight += from[size_t(group) * v_size + group + g] * factor;
            for (int d = 0; d < v_size; d += N)
                store(total + d, load(total + d) + load(from + size_t(g) * v_size + d) * factor);
        }
        finish(c, token, kv_head * group + g, total, top, weight);
    }
}

// How many key heads one item has: enough items that the threads end together, and a block's heads stay together.
inline int heads_together(const Layer &layer, int threads, int64_t items) {
    int heads = most_together(layer);
    if (threads == 1) return std::min(heads, layer.num_kv_heads);
    while (heads > 1 && (items * ((layer.num_kv_heads + heads - 1) / heads) < int64_t{threads} * 8)) heads /= 2;
    return std::min(heads, layer.num_kv_heads);
}

// One query token: key heads [first_head, first_head + heads).
template <class T>
void attend_one(const Call<T> &c, const Item &item, int first_head, int heads, Parts &parts) {
    const Layer &layer = c.layer;
    const Step &step = c.step;
    const int group = layer.group(), v_size = layer.v_head_size, kv_heads = layer.num_kv_heads;
    const int token = step.sequences[item.sequence].query_start;
    const size_t stride = parts.stride();
    thread_local Scratch own;
    const int start = item.merge < 0 ? 0 : step.part_start[item.merge];
    float *state = item.merge < 0 ? own.floats(heads * stride) : parts.part(start + item.part, kv_heads, first_head);
    bool done = false;
#if defined(__AMX_BF16__)
    if constexpr (!std::is_same_v<T, float> && !std::is_same_v<T, float16>) {
        // For a few keys tiles are not worth being filled.
        if (layer.storage == Storage::bfloat16 && group <= HEADS_AMX && item.high - item.low >= 32) {
            decode_amx(c, item, first_head, heads, state, stride);
            // Head by head: the bits of one must not depend on which others are in its item.
            for (int h = 0; h < heads; h++)
                if (!finite(state + h * stride, size_t(group) * v_size))
                    decode(c, item, first_head + h, 1, state + h * stride, stride);
            done = true;
        } else if (has_tiles<T>(layer, group)) {
            for (int h = 0; h < heads; h++) prefill_amx(c, item, first_head + h, state + h * stride);
            done = true;
        }
    }
#endif
    if (!done) decode(c, item, first_head, heads, state, stride);
    if (item.merge < 0) {
        for (int i = 0; i < heads * group; i++) {
            const float *sum = state + i / group * stride, *largest = sum + size_t(group) * v_size;
            const int g = i % group;
            finish(c, token, first_head * group + i, sum + size_t(g) * v_size, largest[g], largest[group + g]);
        }
        return;
    }
    for (int kv_head = first_head; kv_head < first_head + heads; kv_head++) {
        if (parts.left[size_t(item.merge) * kv_heads + kv_head].fetch_sub(1, std::memory_order_acq_rel) != 1) continue;
        merge(c, item, kv_head, parts);
    }
}

template <class T>
void attend_many(const Call<T> &c, const Item &item, int kv_head) {
#if defined(__AMX_BF16__)
    if constexpr (!std::is_same_v<T, float> && !std::is_same_v<T, float16>)
        if (has_tiles<T>(c.layer, ROWS)) return prefill_amx(c, item, kv_head);
#endif
    prefill(c, item, kv_head);
}

// Numbers below 1e-38 count as zero while this lives: a weight as small as that changes no result, and the arithmetic
// of one takes a hundred times as long.
class NoDenormals {
  public:
#if defined(__x86_64__)
    NoDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }  // flush to zero, denormals are zero
    ~NoDenormals() { _mm_setcsr(before_); }

  private:
    unsigned before_;
#else
    NoDenormals() {}
    ~NoDenormals() {}
#endif
};

template <class T>
void attend(const Call<T> &c, int threads) {
    const Step &step = c.step;
    const int kv_heads = c.layer.num_kv_heads;
    Parts parts(step, c.layer);
    int64_t work = 0;
    for (const Item &item : step.items) work += int64_t{item.last - item.first} * (item.high - item.low);
    // Waking another thread takes longer than a step as small as this.
    if (work * c.layer.num_heads * (c.layer.head_size + c.layer.v_head_size) < 200000) threads = 1;
    const int together = heads_together(c.layer, threads, static_cast<int64_t>(step.items.size()));
    const int parts_of_heads = (kv_heads + together - 1) / together;
    Pool::instance().run(threads, static_cast<int>(step.items.size()) * parts_of_heads, [&](int i) {
        const NoDenormals here;
        const Item &item = step.items[i / parts_of_heads];
        const int first = i % parts_of_heads * together, heads = std::min(together, kv_heads - first);
        if (step.sequences[item.sequence].num_queries == 1) return attend_one(c, item, first, heads, parts);
        for (int h = first; h < first + heads; h++) attend_many(c, item, h);
    });
}

struct Target {
    char *data = nullptr;
    ptrdiff_t block = 0, head = 0, token = 0;  // bytes
};

// A row as the cache keeps it: divided by its scale, rounded to the nearest, saturated.
inline void keep(const float *from, int size, double scale, Storage kept, char *to) {
    if (kept == Storage::float8) {
        for (int d = 0; d < size; d++) reinterpret_cast<float8 *>(to)[d] = narrow(static_cast<float>(from[d] / scale));
    } else if (kept == Storage::int8) {
        for (int d = 0; d < size; d++) {
            double x = std::nearbyint(from[d] / scale);
            reinterpret_cast<int8_t *>(to)[d] = static_cast<int8_t>(x < -128 ? -128 : x > 127 ? 127 : x == x ? x : 0);
        }
    } else {
        store_row(kept, from, 1, size, to);
    }
}

// Writes the step's new rows to their slots: keys, and values where there are.
inline void write(const Layer &layer, const Step &step, int block_size, const Rows (&from)[2], const Target (&to)[2],
                  int threads) {
    constexpr int TOKENS = 16;
    const int count = step.num_new_keys, sizes[2] = {layer.head_size, layer.v_head_size}, item = size_of(layer.storage);
    if (int64_t{count} * layer.num_kv_heads * (sizes[0] + sizes[1]) * item < 200000) threads = 1;
    Pool::instance().run(threads, (count + TOKENS - 1) / TOKENS, [&](int part) {
        alignas(64) float row[MOST_ELEMENTS];
        for (int t = part * TOKENS; t < std::min(count, (part + 1) * TOKENS); t++) {
            const int64_t slot = step.slots[t];
            if (slot < 0) continue;
            const ptrdiff_t block = slot / block_size, offset = slot % block_size;
            for (int i = 0; i < (layer.latent ? 1 : 2); i++) {
                for (int h = 0; h < layer.num_kv_heads; h++) {
                    char *target = to[i].data + block * to[i].block + h * to[i].head + offset * to[i].token;
                    const char *source = from[i].at(t, h);
                    if (layer.kept == layer.storage) {
                        std::memcpy(target, source, size_t(sizes[i]) * item);
                    } else {
                        load_row(layer.storage, source, sizes[i], row);
                        keep(row, sizes[i], i ? layer.value_scale : layer.key_scale, layer.kept, target);
                    }
                }
            }
        }
    });
}

}  // namespace hardpoint::HARDPOINT_ISA
