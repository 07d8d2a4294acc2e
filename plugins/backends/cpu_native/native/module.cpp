// The Python module: what it exports, from tensors that tensors.h has checked.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cerrno>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <unistd.h>
#if defined(__AMX_BF16__)
#include <sys/syscall.h>
#endif

#include "attention.h"
#include "tensors.h"

using namespace nb::literals;

namespace hardpoint::HARDPOINT_ISA {
namespace {

// Lets other threads run Python while this lives. Up to 3.13 a daemon thread that comes back while the interpreter ends is
// unwound out of the call below, and a destructor that lets that out would end the process: it waits for the end instead.
class WithoutLock {
  public:
    WithoutLock() : state_(PyEval_SaveThread()) {}
    WithoutLock(const WithoutLock &) = delete;
    ~WithoutLock() {
        try {
            PyEval_RestoreThread(state_);
        } catch (...) {
            for (;;) pause();
        }
    }

  private:
    PyThreadState *state_;
};

Rows rows_of(const Tensor &t) { return {t.data, t.stride[0] * t.item, t.stride[1] * t.item}; }

void write_rows(const BoundLayer &layer, const BoundStep &step, const NewRows &rows, const Caches &caches, int threads) {
    if (layer.shares_cache || step.num_new_keys == 0) return;
    auto target = [](const Tensor &t) {
        return Target{t.data, t.stride[0] * t.item, t.stride[1] * t.item, t.stride[2] * t.item};
    };
    const Rows from[2] = {rows_of(rows.key), rows_of(rows.value)};
    const Target to[2] = {target(caches.key), target(caches.value)};
    write(layer, step, caches.block_size, from, to, threads);
}

void write_kv_cache(const BoundLayer &layer, const BoundStep &step, nb::handle key, nb::handle value,
                    nb::handle key_cache, nb::handle value_cache, int threads) {
    const NewRows rows = read_new(key, value, layer, step);
    const Caches caches = read_caches(key_cache, value_cache, layer);
    check_slots(layer, step, caches);
    const WithoutLock released;
    write_rows(layer, step, rows, caches, threads);
}

// An attention's tensors, checked.
struct Prepared {
    Tensor query, out, keys, values;
    std::optional<Tensor> lse;
    int block_size = 0;  // 0: no cache
};

template <class T>
void run(const BoundLayer &layer, const BoundStep &step, const Prepared &p, int threads) {
    auto source = [&](const Tensor &t) {
        Source<T> s;
        s.data = reinterpret_cast<const T *>(t.data);
        s.block_size = p.block_size;
        if (s.block_size) s.block = t.stride[0], s.head = t.stride[1], s.token = t.stride[2];
        else s.token = t.stride[0], s.head = t.stride[1];
        return s;
    };
    // Only what comes from a cache was divided by its scale.
    const double key_scale = p.block_size ? layer.key_scale : 1, value_scale = p.block_size ? layer.value_scale : 1;
    Call<T> call{layer,
                 step,
                 rows_of(p.query),
                 source(p.keys),
                 source(p.values),
                 rows_of(p.out),
                 static_cast<float>(layer.scale * key_scale * UNIT<T>),
                 static_cast<float>(value_scale * UNIT<T>)};
    if (p.lse) {
        call.lse = reinterpret_cast<float *>(p.lse->data);
        call.lse_head = p.lse->stride[0];
        call.lse_token = p.lse->stride[1];
    }
    attend(call, threads);
    for (Py_ssize_t row = step.num_tokens; row < p.out.shape[0]; row++) {
        for (int h = 0; h < layer.num_heads; h++) {
            std::memset(call.out.at(row, h), 0, size_t(p.out.item) * layer.v_head_size);
            if (p.lse) call.lse[h * call.lse_head + row * call.lse_token] = -INFINITE;
        }
    }
}

void run_any(const BoundLayer &layer, const BoundStep &step, const Prepared &p, int threads) {
    switch (p.block_size ? layer.kept : layer.storage) {
        case Storage::float32: return run<float>(layer, step, p, threads);
        case Storage::bfloat16: return run<bfloat16>(layer, step, p, threads);
        case Storage::float16: return run<float16>(layer, step, p, threads);
        case Storage::float8: return run<float8>(layer, step, p, threads);
        case Storage::int8: return run<int8_t>(layer, step, p, threads);
    }
}

// What does not depend on where keys come from.
Prepared prepare(const BoundLayer &layer, const BoundStep &step, nb::handle query, nb::handle out, nb::handle lse) {
    if (step.cut_for[0] != layer.num_heads || step.cut_for[1] != layer.num_kv_heads)
        refuse("plan", "the plan was made for other heads");
    Prepared p;
    p.query = read_rows(query, "query", layer, step.num_tokens, layer.num_heads, layer.head_size);
    p.out = read_rows(out, "out", layer, step.num_tokens, layer.num_heads, layer.v_head_size);
    if (p.query.shape[0] != p.out.shape[0])
        refuse("out", "out has " + std::to_string(p.out.shape[0]) + " rows, query " + std::to_string(p.query.shape[0]));
    if (!lse.is_none()) {
        p.lse = read(lse, "lse", 2);
        if (p.lse->shape[0] != layer.num_heads || p.lse->shape[1] != p.query.shape[0] ||
            name_of(lse.attr("dtype")) != "torch.float32")
            refuse("lse", "lse of shape " + shape_text(*p.lse) + ": expected (heads, rows of the query), float32");
    }
    return p;
}

void take_cache(Prepared &p, const BoundStep &step, const Caches &caches) {
    p.keys = caches.key, p.values = caches.value, p.block_size = caches.block_size;
    if (!step.has_table) refuse("block_table", "a cache needs batch.block_table");
    if (step.cut_for[2] != p.block_size)
        refuse("kv_cache", "the plan was made for blocks of " + std::to_string(step.cut_for[2]) +
                               " tokens, the cache has blocks of " + std::to_string(p.block_size));
    if (step.largest_block >= p.keys.shape[0])
        throw std::out_of_range("block " + std::to_string(step.largest_block) + " is out of bounds: the cache has " +
                                std::to_string(p.keys.shape[0]) + " blocks");
}

void take_new(Prepared &p, const BoundStep &step, const NewRows &rows) {
    p.keys = rows.key, p.values = rows.value;
    for (size_t i = 0; i < step.sequences.size(); i++) {
        const Sequence &s = step.sequences[i];
        int end = i + 1 < step.sequences.size() ? step.sequences[i + 1].key_start : step.num_new_keys;
        if (s.num_queries > 0 && end - s.key_start != s.num_keys)
            refuse("seq_lens", "sequence " + std::to_string(i) + ": " + std::to_string(end - s.key_start) +
                                   " new keys of " + std::to_string(s.num_keys) + ", and no cache for the rest");
    }
}

// Over the cache where `cached`, else over keys and values as the step's own rows.
void attention(const BoundLayer &layer, const BoundStep &step, nb::handle query, nb::handle keys, nb::handle values,
               bool cached, nb::handle out, nb::handle lse, int threads) {
    Prepared p = prepare(layer, step, query, out, lse);
    if (cached) take_cache(p, step, read_caches(keys, values, layer));
    else take_new(p, step, read_new(keys, values, layer, step));
    const WithoutLock released;
    run_any(layer, step, p, threads);
}

// Both at once: every argument is checked before the first byte is written.
void forward(const BoundLayer &layer, const BoundStep &step, nb::handle query, nb::handle key, nb::handle value,
             nb::handle key_cache, nb::handle value_cache, nb::handle out, nb::handle lse, int threads) {
    Prepared p = prepare(layer, step, query, out, lse);
    const Caches caches = read_caches(key_cache, value_cache, layer);
    take_cache(p, step, caches);
    std::optional<NewRows> rows;
    if (!key.is_none()) {
        rows = read_new(key, value, layer, step);
        check_slots(layer, step, caches);
    }
    const WithoutLock released;
    if (rows) write_rows(layer, step, *rows, caches, threads);
    run_any(layer, step, p, threads);
}

Storage storage_of(const std::string &dtype, const char *field) {
    if (dtype == "torch.float32") return Storage::float32;
    if (dtype == "torch.bfloat16") return Storage::bfloat16;
    if (dtype == "torch.float16") return Storage::float16;
    if (dtype == "torch.float8_e4m3fn") return Storage::float8;
    if (dtype == "torch.int8") return Storage::int8;
    refuse(field, dtype + ": the kernels take float32, bfloat16 and float16, and caches of float8_e4m3fn and int8");
}

BoundLayer make_layer(int num_heads, int num_kv_heads, int head_size, int v_head_size, nb::object dtype,
                      nb::object cache_dtype, bool latent, float scale, double key_scale, double value_scale,
                      float soft_cap, std::vector<float> sinks, std::vector<float> slopes, bool shares_cache) {
    BoundLayer layer;
    layer.dtype_name = name_of(dtype), layer.cache_dtype_name = name_of(cache_dtype);
    layer.storage = storage_of(layer.dtype_name, "dtype");
    if (size_of(layer.storage) == 1) refuse("dtype", layer.dtype_name + " is for caches only");
    layer.kept = storage_of(layer.cache_dtype_name, "kv_cache_dtype");
    if (num_kv_heads < 1 || num_heads < num_kv_heads || num_heads % num_kv_heads || num_heads / num_kv_heads > 256)
        refuse("num_heads", std::to_string(num_heads) + " heads over " + std::to_string(num_kv_heads) + " key heads");
    const int most = latent ? MOST_ELEMENTS : 256;
    for (int size : {head_size, v_head_size})
        if (size < 16 || size > most || size % 16)
            refuse("head_size", std::to_string(size) + ": a head has a multiple of 16 elements, at most " +
                                    std::to_string(most));
    if (latent && (num_kv_heads != 1 || v_head_size > head_size))
        refuse("head_size", "a latent has one head, whose value is its first part");
    if (!(key_scale > 0) || !(value_scale > 0)) refuse("key_scale", "a scale is positive");
    for (const auto *per_head : {&sinks, &slopes})
        if (!per_head->empty() && static_cast<int>(per_head->size()) != num_heads)
            refuse("num_heads", std::to_string(per_head->size()) + " numbers for " + std::to_string(num_heads) + " heads");
    layer.num_heads = num_heads;
    layer.num_kv_heads = num_kv_heads;
    layer.head_size = head_size;
    layer.v_head_size = v_head_size;
    layer.dtype = std::move(dtype);
    layer.cache_dtype = std::move(cache_dtype);
    layer.latent = latent;
    layer.scale = scale;
    layer.key_scale = key_scale;
    layer.value_scale = value_scale;
    layer.soft_cap = soft_cap;
    layer.sinks = std::move(sinks);
    layer.slopes = std::move(slopes);
    layer.shares_cache = shares_cache;
    return layer;
}

// Reads memory as fast as this machine can, on several streams ahead of their use; the measure for decoding.
float read_memory(uintptr_t address, size_t bytes, int threads) {
    constexpr size_t PIECE = 1 << 18, STREAMS = 8, AHEAD = 1024;
    const char *data = reinterpret_cast<const char *>(address);
    std::atomic<float> total{0};
    const WithoutLock released;
    Pool::instance().run(threads, static_cast<int>(bytes / PIECE), [&](int piece) {
        vf sum[STREAMS] = {};
        const char *from = data + size_t(piece) * PIECE;
        for (size_t i = 0; i < PIECE / STREAMS; i += 64)
            for (size_t stream = 0; stream < STREAMS; stream++) {
                const char *p = from + stream * (PIECE / STREAMS) + i;
                __builtin_prefetch(p + AHEAD, 0, 3);
                for (size_t j = 0; j < 64; j += N * 4) sum[stream] += load(reinterpret_cast<const float *>(p + j));
            }
        for (vf v : sum) total.store(horizontal_sum(v), std::memory_order_relaxed);
    });
    return total;
}

// The step's numbers are copied: what the engine writes into its tensors later cannot lead a kernel astray.
BoundStep make_step(int num_heads, int num_kv_heads, int block_size, bool bfloat, bool causal, int window,
                    const std::vector<int> &query_starts, const std::vector<int> &seq_lens,
                    const std::vector<int> &key_starts, nb::handle table, nb::handle slots, int threads) {
    BoundStep step;
    if (num_kv_heads < 1 || num_heads < num_kv_heads || num_heads % num_kv_heads)
        refuse("num_heads", std::to_string(num_heads) + " heads over " + std::to_string(num_kv_heads) + " key heads");
    const size_t count = seq_lens.size();
    for (const auto *starts : {&query_starts, &key_starts}) {
        if (starts->size() != count + 1 || (*starts)[0] != 0)
            refuse("query_start_loc", std::to_string(starts->size()) + " starts for " + std::to_string(count) +
                                          " sequences: expected one more, from 0 on");
        for (size_t i = 0; i < count; i++)
            if ((*starts)[i + 1] < (*starts)[i]) refuse("query_start_loc", "the starts are not in order");
    }
    step.causal = causal;
    step.window = std::max(window, 0);
    step.num_tokens = query_starts[count];
    step.num_new_keys = key_starts[count];
    step.cut_for = {num_heads, num_kv_heads, block_size, bfloat};
    Tensor t;
    if (!table.is_none()) {
        t = read(table, "block_table", 2);
        if (nb::cast<int>(table.attr("element_size")()) != 4 || nb::cast<bool>(table.attr("is_floating_point")()) ||
            t.shape[0] != static_cast<Py_ssize_t>(count))
            refuse("block_table", "block_table of shape " + shape_text(t) + " and " + name_of(table.attr("dtype")) +
                                      ": expected (" + std::to_string(count) + ", blocks), torch.int32");
        step.has_table = block_size > 0;
    }
    for (size_t i = 0; i < count; i++) {
        Sequence s{query_starts[i], query_starts[i + 1] - query_starts[i], seq_lens[i], key_starts[i], step.table.size()};
        if (s.num_keys < 0) refuse("seq_lens", "a sequence of " + std::to_string(s.num_keys) + " keys");
        if (step.has_table && s.num_keys > 0 && s.num_queries > 0) {
            int64_t needed = (int64_t{s.num_keys} + block_size - 1) / block_size;
            if (needed > t.shape[1])
                refuse("block_table", "sequence " + std::to_string(i) + ": " + std::to_string(s.num_keys) +
                                          " keys need " + std::to_string(needed) + " blocks of " +
                                          std::to_string(block_size) + ", its block_table has " +
                                          std::to_string(t.shape[1]));
            int low, high;
            step.visible(s, 0, low, high);
            const int first = low / block_size;
            // Blocks before the window are not read, so anything may stand there.
            for (int64_t b = 0; b < needed; b++) {
                int32_t block = 0;
                if (b >= first) {
                    block = reinterpret_cast<const int32_t *>(t.data)[i * t.stride[0] + b * t.stride[1]];
                    if (block < 0)
                        throw std::out_of_range("sequence " + std::to_string(i) + ": block " + std::to_string(block) +
                                                " is out of bounds");
                    step.largest_block = std::max(step.largest_block, block);
                }
                step.table.push_back(block);
            }
        }
        step.sequences.push_back(s);
    }
    if (!slots.is_none()) {
        Tensor m = read(slots, "slot_mapping", 1);
        if (nb::cast<int>(slots.attr("element_size")()) != 8 || nb::cast<bool>(slots.attr("is_floating_point")()))
            refuse("slot_mapping", "slot_mapping of " + name_of(slots.attr("dtype")) + ": expected torch.int64");
        step.has_slots = m.shape[0] >= step.num_new_keys;
        if (!step.has_slots)
            refuse("slot_mapping", std::to_string(step.num_new_keys) + " new keys, slot_mapping has " +
                                       std::to_string(m.shape[0]));
        for (int i = 0; i < step.num_new_keys; i++) {
            int64_t slot = reinterpret_cast<const int64_t *>(m.data)[i * m.stride[0]];
            if (slot < -1) throw std::out_of_range("slot " + std::to_string(slot) + " is out of bounds");
            step.largest_slot = std::max(step.largest_slot, slot);
            step.slots.push_back(slot);
        }
    }
    Layer heads;
    heads.num_heads = num_heads;
    heads.num_kv_heads = num_kv_heads;
    heads.storage = bfloat ? Storage::bfloat16 : Storage::float32;
    step.cut(heads, rows_per_item(heads, std::max(threads, 1), step.sequences));
    return step;
}

#if defined(__AMX_BF16__)
// The first tile instruction of a process without this permission ends it. Once given it stays, for all threads and
// children; asking again changes nothing.
void permit_tiles() {
    constexpr long REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    if (syscall(SYS_arch_prctl, REQUEST, TILE_DATA) != 0) {
        PyErr_Format(PyExc_ImportError, "AMX not permitted: arch_prctl(ARCH_REQ_XCOMP_PERM): %s", std::strerror(errno));
        throw nb::python_error();
    }
}
#endif

}  // namespace
}  // namespace hardpoint::HARDPOINT_ISA

NB_MODULE(HARDPOINT_MODULE, m) {
    using namespace hardpoint::HARDPOINT_ISA;
#if defined(__AMX_BF16__)
    permit_tiles();
#endif
    // What is alive at the interpreter's end goes with the process.
    nb::set_leak_warnings(false);
    nb::register_exception_translator([](const std::exception_ptr &p, void *) {
        try {
            std::rethrow_exception(p);
        } catch (const Refusal &refusal) {
            nb::object cls = nb::module_::import_("hardpoint.errors").attr("ConfigError");
            nb::object error = cls(refusal.what(), "field"_a = refusal.field);
            PyErr_SetObject(cls.ptr(), error.ptr());
        }
    });
    nb::class_<BoundLayer>(m, "Layer");
    nb::class_<BoundStep>(m, "Step");
    m.def("layer", &make_layer, "num_heads"_a, "num_kv_heads"_a, "head_size"_a, "v_head_size"_a, "dtype"_a,
          "cache_dtype"_a, "latent"_a, "scale"_a, "key_scale"_a, "value_scale"_a, "soft_cap"_a, "sinks"_a, "slopes"_a, "shares_cache"_a);
    m.def("step", &make_step, "num_heads"_a, "num_kv_heads"_a, "block_size"_a, "bfloat"_a, "causal"_a, "window"_a,
          "query_starts"_a, "seq_lens"_a, "key_starts"_a, "table"_a.none(), "slots"_a.none(), "threads"_a);
    const nb::arg given;
    const auto optional = nb::arg().none();
    m.def("write_kv_cache", &write_kv_cache, given, given, given, optional, given, optional, given);
    m.def("attention", &attention, given, given, given, given, optional, given, given, optional, given);
    m.def("forward", &forward, given, given, given, optional, optional, given, optional, given, optional, given);
    m.def("read", &read_memory);
    m.attr("instruction_set") = HARDPOINT_ISA_NAME;
}
