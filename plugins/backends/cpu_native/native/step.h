// What a call is made of: the layer, the step's sequences and items of work, and where the tensors lie.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "vector.h"

namespace hardpoint::HARDPOINT_ISA {

enum class Storage { float32, bfloat16, float16, float8, int8 };

inline int size_of(Storage s) { return s == Storage::float32 ? 4 : s == Storage::bfloat16 || s == Storage::float16 ? 2 : 1; }

struct Layer {
    int num_heads = 0, num_kv_heads = 0, head_size = 0, v_head_size = 0;
    Storage storage = Storage::float32, kept = Storage::float32;  // of the step's tensors, and of the cache
    bool latent = false;  // one tensor of keys, whose first part is the value
    float scale = 1, soft_cap = 0;  // a cap of 0 is none
    double key_scale = 1, value_scale = 1;  // what is kept, times this, is what was written
    std::vector<float> sinks, slopes;  // per head, or empty

    int group() const { return num_heads / num_kv_heads; }
};

constexpr int MOST_ELEMENTS = 1024;  // of a head

// Keys that one sequence is cut into when it decodes. Always the same cut, whatever else is in the batch and however
// many threads there are: so the result depends on neither.
constexpr int CHUNK = 1024;

// Query tokens [first, last) of a sequence against keys [low, high), for each key head.
struct Item {
    int sequence, first, last, low, high;
    int part, parts;   // this part of so many, merged when the last is done
    int merge;         // number of the merge within the step; -1 where there is one part
};

struct Sequence {
    int query_start, num_queries, num_keys, key_start;
    size_t table_start;

    int position(int token) const { return num_keys - num_queries + token; }
};

struct Step {
    int num_tokens = 0, num_new_keys = 0, window = 0;  // a window of 0 is none
    bool causal = true, has_table = false, has_slots = false;
    std::vector<Sequence> sequences;
    std::vector<int32_t> table;  // only the blocks that are read, each sequence's at its table_start
    std::vector<int64_t> slots;
    int32_t largest_block = -1;
    int64_t largest_slot = -1;
    std::vector<Item> items;
    int num_merges = 0, num_parts = 0;
    std::vector<int> part_start;  // of each merge

    // The keys that the query token sees.
    void visible(const Sequence &s, int token, int &low, int &high) const {
        const int64_t position = s.position(token);
        low = window ? static_cast<int>(std::max<int64_t>(0, position - window + 1)) : 0;
        high = s.num_keys;
        if (causal) high = static_cast<int>(std::min<int64_t>(high, position + 1));
        else if (window) high = static_cast<int>(std::min<int64_t>(high, position + window));
        if (high < low) high = low;
    }

    // Cuts the step into items. `rows` is how many rows (query tokens x heads of a group) one item should have.
    void cut(const Layer &layer, int rows) {
        int group = layer.group();
        for (int number = 0; number < static_cast<int>(sequences.size()); number++) {
            const Sequence &s = sequences[number];
            if (s.num_queries == 1) {
                int low, high;
                visible(s, 0, low, high);
                int begin = low / CHUNK, parts = std::max(1, (high + CHUNK - 1) / CHUNK - begin);
                int merge = parts > 1 ? num_merges++ : -1;
                if (merge >= 0) {
                    part_start.push_back(num_parts);
                    num_parts += parts;
                }
                for (int part = 0; part < parts; part++) {
                    int from = std::max(low, (begin + part) * CHUNK), to = std::min(high, (begin + part + 1) * CHUNK);
                    items.push_back({number, 0, 1, from, to, part, parts, merge});
                }
                continue;
            }
            int tokens = std::max(1, rows / group);
            for (int first = 0; first < s.num_queries; first += tokens) {
                int last = std::min(s.num_queries, first + tokens), low, high, ignored;
                visible(s, first, low, ignored);
                visible(s, last - 1, ignored, high);
                items.push_back({number, first, last, low, std::max(low, high), 0, 1, -1});
            }
        }
        // The long ones first: a short one last leaves no thread waiting.
        auto work = [](const Item &i) { return int64_t{i.last - i.first} * (i.high - i.low); };
        std::stable_sort(items.begin(), items.end(), [&](const Item &a, const Item &b) { return work(a) > work(b); });
    }
};

// Rows of (token, head), in bytes; the content is dense, and of the layer's storage.
struct Rows {
    char *data = nullptr;
    ptrdiff_t token = 0, head = 0;

    char *at(ptrdiff_t t, ptrdiff_t h) const { return data + t * token + h * head; }
};

inline void load_row(Storage storage, const char *from, int size, float *to) {
    auto all = [&](auto *p) {
        for (int d = 0; d < size; d += N) store(to + d, load(p + d));
    };
    if (storage == Storage::float32) all(reinterpret_cast<const float *>(from));
    else if (storage == Storage::bfloat16) all(reinterpret_cast<const bfloat16 *>(from));
    else all(reinterpret_cast<const float16 *>(from));
}

inline void store_row(Storage storage, const float *from, float factor, int size, char *to) {
    auto all = [&](auto *p) {
        for (int d = 0; d < size; d += N) store(p + d, load(from + d) * factor);
    };
    if (storage == Storage::float32) all(reinterpret_cast<float *>(to));
    else if (storage == Storage::bfloat16) all(reinterpret_cast<bfloat16 *>(to));
    else all(reinterpret_cast<float16 *>(to));
}

// Keys or values, through the cache's blocks or as the step's own rows.
template <class T>
struct Source {
    const T *data = nullptr;
    ptrdiff_t block = 0, head = 0, token = 0;
    int block_size = 0;  // 0: no cache

    // Pointers to the rows of keys from ... from+count-1 of a sequence.
    void rows(const Step &step, const Sequence &s, int kv_head, int from, int count, const T **out) const {
        const T *base = data + kv_head * head;
        if (block_size == 0) {
            for (int i = 0; i < count; i++) out[i] = base + (ptrdiff_t{s.key_start} + from + i) * token;
            return;
        }
        const int32_t *table = step.table.data() + s.table_start;
        int number = from / block_size, offset = from - number * block_size;
        for (int i = 0; i < count; number++, offset = 0) {
            const T *row = base + ptrdiff_t{table[number]} * block + ptrdiff_t{offset} * token;
            for (int end = std::min(count, i + block_size - offset); i < end; i++, row += token) out[i] = row;
        }
    }
    // Whether keys from ... from+count-1 lie `token` from one another.
    bool straight(int from, int count) const { return block_size == 0 || from % block_size + count <= block_size; }
};

// `T` is what keys and values are stored in.
template <class T>
struct Call {
    const Layer &layer;
    const Step &step;
    Rows query;
    Source<T> keys, values;
    Rows out;
    float scale, value_scale;  // of logits and of the result, what the storage of keys and values needs included
    float *lse = nullptr;
    ptrdiff_t lse_head = 0, lse_token = 0;
};

// What stands when all keys are seen: the sum of weights times values, their largest logit, the sum of weights.
// Writes the result and its logarithm; a row that sees nothing is zero.
template <class T>
void finish(const Call<T> &c, int token, int head, const float *sum, float largest, float weight) {
    const Layer &layer = c.layer;
    float factor = 1;
    if (!layer.sinks.empty()) {
        float sink = layer.sinks[head], top = std::max(largest, sink);
        if (top > -INFINITE) {
            factor = std::exp(largest - top);
            weight = weight * factor + std::exp(sink - top);
            largest = top;
        }
    }
    char *to = c.out.at(token, head);
    const bool nothing = weight == 0;
    if (nothing) std::memset(to, 0, size_t(layer.v_head_size) * size_of(layer.storage));
    else store_row(layer.storage, sum, factor / weight * c.value_scale, layer.v_head_size, to);
    if (c.lse) c.lse[head * c.lse_head + token * c.lse_token] = nothing ? -INFINITE : largest + std::log(weight);
}

// Memory of a thread, kept between calls.
class Scratch {
  public:
    float *floats(size_t count) {
        if (count > size_) {
            std::free(data_);
            size_ = 0;
            data_ = static_cast<float *>(std::aligned_alloc(64, (count * sizeof(float) + 63) / 64 * 64));
            if (data_ == nullptr) std::abort();  // the system has no memory for a few hundred kilobytes
            size_ = count;
        }
        return data_;
    }
    ~Scratch() { std::free(data_); }

    static Scratch &mine() {
        thread_local Scratch scratch;
        return scratch;
    }

  private:
    float *data_ = nullptr;
    size_t size_ = 0;
};

}  // namespace hardpoint::HARDPOINT_ISA
