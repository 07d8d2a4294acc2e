// The kernels without Python, for the sanitizers: every storage, odd sizes, all threads of the pool, several callers.
// Compares decode and prefill with a plain loop in double. Prints nothing; the exit status says how many rows differ.

#include <cstdio>
#include <random>
#include <thread>

#include "attention.h"

using namespace hardpoint::HARDPOINT_ISA;

namespace {

struct Problem {
    Layer layer;
    Step step;
    int block_size = 0;
    std::vector<float> query, key, value;           // new rows
    std::vector<float> key_cache, value_cache, out;  // exactly as large as they must be: one byte more is an error
};

Problem make(int seed, int heads, int kv_heads, int size, int block_size, std::vector<std::pair<int, int>> lengths) {
    Problem p;
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    p.layer.num_heads = heads, p.layer.num_kv_heads = kv_heads, p.layer.head_size = p.layer.v_head_size = size;
    p.layer.scale = 1 / std::sqrt(static_cast<float>(size));
    p.block_size = block_size;
    int blocks = 0, tokens = 0;
    for (auto [queries, keys] : lengths) {
        p.step.sequences.push_back({tokens, queries, keys, tokens, p.step.table.size()});
        for (int i = 0; i < keys; i += block_size) p.step.table.push_back(blocks++);
        for (int i = keys - queries; i < keys; i++)
            p.step.slots.push_back(int64_t{p.step.table[p.step.sequences.back().table_start + i / block_size]} * block_size +
                                   i % block_size);
        tokens += queries;
    }
    p.step.num_tokens = p.step.num_new_keys = tokens;
    auto fill = [&](std::vector<float> &v, size_t count) {
        v.resize(count);
        for (float &x : v) x = normal(random);
    };
    fill(p.query, size_t(tokens) * heads * size);
    fill(p.key, size_t(tokens) * kv_heads * size);
    fill(p.value, size_t(tokens) * kv_heads * size);
    fill(p.key_cache, size_t(blocks) * kv_heads * block_size * size);
    fill(p.value_cache, size_t(blocks) * kv_heads * block_size * size);
    p.out.resize(p.query.size());
    return p;
}

void run(Problem &p, int threads) {
    const int size = p.layer.head_size, kv = p.layer.num_kv_heads, heads = p.layer.num_heads;
    Step step = p.step;
    step.cut(p.layer, rows_per_item(p.layer, threads, step.sequences));
    const ptrdiff_t row = size * sizeof(float);
    const Rows from[2] = {{reinterpret_cast<char *>(p.key.data()), kv * row, row},
                          {reinterpret_cast<char *>(p.value.data()), kv * row, row}};
    auto target = [&](std::vector<float> &cache) {
        return Target{reinterpret_cast<char *>(cache.data()), kv * p.block_size * row, p.block_size * row, row};
    };
    const Target to[2] = {target(p.key_cache), target(p.value_cache)};
    write(p.layer, step, p.block_size, from, to, threads);
    auto source = [&](std::vector<float> &cache) {
        return Source<float>{cache.data(), ptrdiff_t{kv} * p.block_size * size, ptrdiff_t{p.block_size} * size, size,
                             p.block_size};
    };
    Call<float> call{p.layer, step, {reinterpret_cast<char *>(p.query.data()), heads * row, row}, source(p.key_cache),
                     source(p.value_cache), {reinterpret_cast<char *>(p.out.data()), heads * row, row}, p.layer.scale, 1};
    attend(call, threads);
}

int differences(const Problem &p) {
    const int size = p.layer.head_size, group = p.layer.group(), kv = p.layer.num_kv_heads;
    int found = 0;
    for (const Sequence &s : p.step.sequences) {
        for (int t = 0; t < s.num_queries; t++) {
            for (int h = 0; h < p.layer.num_heads; h++) {
                const float *q = &p.query[(size_t(s.query_start + t) * p.layer.num_heads + h) * size];
                std::vector<double> sum(size);
                double weight = 0;
                for (int k = 0; k <= s.position(t); k++) {
                    size_t at = ((size_t(p.step.table[s.table_start + k / p.block_size]) * kv + h / group) * p.block_size +
                                 k % p.block_size) * size;
                    double dot = 0;
                    for (int d = 0; d < size; d++) dot += double(q[d]) * p.key_cache[at + d];
                    double e = std::exp(dot * p.layer.scale);
                    weight += e;
                    for (int d = 0; d < size; d++) sum[d] += e * p.value_cache[at + d];
                }
                const float *ours = &p.out[(size_t(s.query_start + t) * p.layer.num_heads + h) * size];
                for (int d = 0; d < size; d++)
                    if (!(std::fabs(ours[d] - sum[d] / weight) < 2e-5)) {
                        found++;
                        break;
                    }
            }
        }
    }
    return found;
}

template <class T>
void read_all_storages(Problem &p, Storage kept) {
    // The same call on a cache of other elements: what matters here is which bytes are touched, and by whom.
    std::vector<T> keys(p.key_cache.size()), values(p.value_cache.size());
    std::memset(static_cast<void *>(keys.data()), 0, keys.size() * sizeof(T));
    std::memset(static_cast<void *>(values.data()), 0, values.size() * sizeof(T));
    const int size = p.layer.head_size, kv = p.layer.num_kv_heads, heads = p.layer.num_heads;
    const ptrdiff_t row = size * sizeof(float), kept_row = size * sizeof(T);
    Layer layer = p.layer;
    layer.kept = kept;
    Step step = p.step;
    step.cut(layer, rows_per_item(layer, 4, step.sequences));
    const Rows from[2] = {{reinterpret_cast<char *>(p.key.data()), kv * row, row},
                          {reinterpret_cast<char *>(p.value.data()), kv * row, row}};
    auto target = [&](std::vector<T> &cache) {
        return Target{reinterpret_cast<char *>(cache.data()), kv * p.block_size * kept_row, p.block_size * kept_row, kept_row};
    };
    const Target to[2] = {target(keys), target(values)};
    write(layer, step, p.block_size, from, to, 4);
    auto source = [&](std::vector<T> &cache) {
        return Source<T>{cache.data(), ptrdiff_t{kv} * p.block_size * size, ptrdiff_t{p.block_size} * size, size, p.block_size};
    };
    Call<T> call{layer, step, {reinterpret_cast<char *>(p.query.data()), heads * row, row}, source(keys), source(values),
                 {reinterpret_cast<char *>(p.out.data()), heads * row, row}, layer.scale * UNIT<T>, UNIT<T>};
    attend(call, 4);
}

}  // namespace

int main() {
    int found = 0;
    for (auto [block_size, size] : {std::pair{1, 16}, {7, 80}, {16, 32}}) {
        Problem p = make(block_size, 6, 2, size, block_size, {{1, 1}, {1, 1100}, {9, 40}, {0, 0}, {70, 130}, {1, 33}});
        for (int threads : {1, 4}) {
            run(p, threads);
            found += differences(p);
        }
        read_all_storages<bfloat16>(p, Storage::bfloat16);
        read_all_storages<float16>(p, Storage::float16);
        read_all_storages<float8>(p, Storage::float8);
        read_all_storages<int8_t>(p, Storage::int8);
    }
    // Several callers: one has the pool, the others work alone.
    std::vector<std::thread> callers;
    std::atomic<int> wrong{0};
    for (int number = 0; number < 3; number++)
        callers.emplace_back([&wrong, number] {
            Problem p = make(number, 8, 2, 32, 16, {{1, 1100}, {40, 100}});
            for (int round = 0; round < 5; round++) run(p, 4);
            wrong += differences(p);
        });
    for (std::thread &caller : callers) caller.join();
    found += wrong;
    if (found) std::printf("%d rows differ\n", found);
    return found != 0;
}
