// The kernels without Python, for the sanitizers: every storage, odd sizes, all threads of the pool, several callers.
// Compares decode and prefill with a plain loop in double. Prints nothing; the exit status says whether rows differ.

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

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

int differences(const Problem &p, double tolerance = 2e-5) {
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
                    if (!(std::fabs(ours[d] - sum[d] / weight) < tolerance)) {
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

// Elements up to a page that nobody may touch: sanitizers do not see what tiles load.
template <class T>
class Guarded {
  public:
    explicit Guarded(const std::vector<float> &from) : page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))) {
        const size_t bytes = from.size() * sizeof(T);
        size_ = (bytes + page_ - 1) / page_ * page_ + page_;
        memory_ = static_cast<char *>(mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        if (memory_ == MAP_FAILED || mprotect(memory_ + size_ - page_, page_, PROT_NONE) != 0) std::abort();
        data_ = reinterpret_cast<T *>(memory_ + size_ - page_ - bytes);
        for (size_t i = 0; i < from.size(); i += N) {
            alignas(64) T row[N];
            store(row, load(&from[i]));
            std::memcpy(static_cast<void *>(data_ + i), row, sizeof row);
        }
    }
    Guarded(const Guarded &) = delete;
    Guarded &operator=(const Guarded &) = delete;
    ~Guarded() { munmap(memory_, size_); }
    char *bytes() const { return reinterpret_cast<char *>(data_); }
    T *data() const { return data_; }

  private:
    size_t page_, size_ = 0;
    char *memory_ = nullptr;
    T *data_ = nullptr;
};

// The same step in bfloat16, and with a cache of other elements where `kept` says so; rows that differ by more than that
// explains.
template <class T>
int differences_in_bfloat16(Problem p, Storage kept, float key_scale, double tolerance) {
    const int size = p.layer.head_size, kv = p.layer.num_kv_heads, heads = p.layer.num_heads;
    for (std::vector<float> *v : {&p.query, &p.key, &p.value, &p.key_cache, &p.value_cache})
        for (size_t i = 0; i < v->size(); i += N) {
            alignas(64) bfloat16 row[N];
            store(row, load(&(*v)[i]));
            store(&(*v)[i], load(row));
        }
    p.layer.storage = Storage::bfloat16, p.layer.kept = kept;
    p.layer.key_scale = p.layer.value_scale = key_scale;
    Step step = p.step;
    step.cut(p.layer, rows_per_item(p.layer, 3, step.sequences));
    const ptrdiff_t row = size * 2, kept_row = size * sizeof(T);
    const Guarded<bfloat16> query(p.query), key(p.key), value(p.value), out(p.out);
    const std::vector<float> nothing(p.key_cache.size());
    const Guarded<bfloat16> keys(sizeof(T) == 2 ? nothing : std::vector<float>(nothing.size() / 2));
    const Guarded<bfloat16> values(sizeof(T) == 2 ? nothing : std::vector<float>(nothing.size() / 2));
    const Rows from[2] = {{key.bytes(), kv * row, row}, {value.bytes(), kv * row, row}};
    auto target = [&](const Guarded<bfloat16> &cache) {
        return Target{cache.bytes(), kv * p.block_size * kept_row, p.block_size * kept_row, kept_row};
    };
    const Target to[2] = {target(keys), target(values)};
    // What is in the cache already is written first, as new rows of steps before.
    for (const auto &[cache, at] : {std::pair{&p.key_cache, 0}, {&p.value_cache, 1}})
        for (size_t i = 0; i < cache->size(); i += size) {
            if (kept == Storage::bfloat16) store_row(kept, &(*cache)[i], 1, size, to[at].data + i * sizeof(T));
            else keep(&(*cache)[i], size, key_scale, kept, to[at].data + i * sizeof(T));
        }
    write(p.layer, step, p.block_size, from, to, 3);
    // The reference reads what the cache holds now.
    for (const auto &[cache, at] : {std::pair{&p.key_cache, 0}, {&p.value_cache, 1}})
        for (size_t i = 0; i < cache->size(); i += N)
            store(&(*cache)[i], load(reinterpret_cast<const T *>(to[at].data + i * sizeof(T))) * (UNIT<T> * key_scale));
    auto source = [&](const Guarded<bfloat16> &cache) {
        return Source<T>{reinterpret_cast<const T *>(cache.bytes()), ptrdiff_t{kv} * p.block_size * size,
                         ptrdiff_t{p.block_size} * size, size, p.block_size};
    };
    const float unit = UNIT<T> * key_scale;
    Call<T> call{p.layer, step, {query.bytes(), heads * row, row}, source(keys), source(values),
                 {out.bytes(), heads * row, row}, p.layer.scale * unit, unit};
    attend(call, 3);
    for (size_t i = 0; i < p.out.size(); i += N) store(&p.out[i], load(out.data() + i));
    return differences(p, tolerance);
}

int differences_in_all_of_bfloat16(const Problem &p) {
    return differences_in_bfloat16<bfloat16>(p, Storage::bfloat16, 1, 0.02) +
           differences_in_bfloat16<float8>(p, Storage::float8, 0.01f, 0.02) +
           differences_in_bfloat16<int8_t>(p, Storage::int8, 0.03f, 0.02);
}

}  // namespace

int main() {
#if defined(__AMX_BF16__)
    if (syscall(SYS_arch_prctl, 0x1023, 18) != 0) return 77;  // ARCH_REQ_XCOMP_PERM of XFEATURE_XTILEDATA: not here
#endif
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
        found += differences_in_all_of_bfloat16(p);
    }
    // Groups of one to more than tiles take, values not a multiple of what they take, sequences of more than one part.
    for (int group : {1, 2, 3, 8, 9, 17})
        found += differences_in_all_of_bfloat16(make(group, 2 * group, 2, 48, 16, {{1, 1300}, {1, 63}, {40, 300}, {1, 65}}));
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
