// The Python module: checks whatever comes in, before any memory is touched. Tensors are read through their Python
// attributes, so that no torch release can break a module that was built with another.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <climits>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "attention.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hardpoint::HARDPOINT_ISA {
namespace {

// Becomes hardpoint.errors.ConfigError.
struct Refusal : std::runtime_error {
    std::string field;
    Refusal(std::string field_, const std::string &message) : std::runtime_error(message), field(std::move(field_)) {}
};

[[noreturn]] void refuse(const char *field, const std::string &message) { throw Refusal(field, message); }

struct BoundLayer : Layer {
    nb::object dtype;
    std::string dtype_name;
    bool shares_cache = false;
    size_t item_size() const { return storage == Storage::float32 ? 4 : 2; }
};

struct BoundStep : Step {
    std::array<int, 4> cut_for{};  // heads, key heads, window, kind of storage: what the items depend on
};

struct Tensor {
    int dimensions = 0;
    Py_ssize_t shape[4] = {}, stride[4] = {};
    char *data = nullptr;
    bool dense() const { return stride[dimensions - 1] == 1 || shape[dimensions - 1] <= 1; }
};

std::string shape_text(const Tensor &t) {
    std::string text = "(";
    for (int i = 0; i < t.dimensions; i++) text += (i ? ", " : "") + std::to_string(t.shape[i]);
    return text + (t.dimensions == 1 ? ",)" : ")");
}

std::string name_of(nb::handle dtype) { return nb::cast<std::string>(nb::str(dtype)); }

// Errors: whatever Python says where this is no tensor.
Tensor read(nb::handle object, const char *name, int dimensions) {
    Tensor t;
    nb::object shape = object.attr("shape"), stride = object.attr("stride")();
    if (!PyTuple_Check(shape.ptr()) || !PyTuple_Check(stride.ptr()) || PyTuple_GET_SIZE(shape.ptr()) > 4 ||
        PyTuple_GET_SIZE(shape.ptr()) != PyTuple_GET_SIZE(stride.ptr()))
        refuse(name, std::string(name) + ": expected a tensor of " + std::to_string(dimensions) + " dimensions");
    t.dimensions = static_cast<int>(PyTuple_GET_SIZE(shape.ptr()));
    for (int i = 0; i < t.dimensions; i++) {
        t.shape[i] = PyLong_AsSsize_t(PyTuple_GET_ITEM(shape.ptr(), i));
        t.stride[i] = PyLong_AsSsize_t(PyTuple_GET_ITEM(stride.ptr(), i));
    }
    if (PyErr_Occurred()) throw nb::python_error();
    if (t.dimensions != dimensions)
        refuse(name, std::string(name) + " of shape " + shape_text(t) + ": expected " + std::to_string(dimensions) +
                         " dimensions");
    if (!nb::cast<bool>(object.attr("is_cpu"))) refuse(name, std::string(name) + " is not on the CPU");
    t.data = reinterpret_cast<char *>(nb::cast<uintptr_t>(object.attr("data_ptr")()));
    return t;
}

// A packed tensor of the step: (at least rows, heads, size) of the layer's dtype.
Tensor read_rows(nb::handle object, const char *name, const BoundLayer &layer, Py_ssize_t rows, Py_ssize_t heads,
                 Py_ssize_t size) {
    Tensor t = read(object, name, 3);
    nb::object dtype = object.attr("dtype");
    if (t.shape[0] < rows || t.shape[1] != heads || t.shape[2] != size || !dtype.is(layer.dtype))
        refuse(name, std::string(name) + " of shape " + shape_text(t) + " and " + name_of(dtype) +
                         ": expected (at least " + std::to_string(rows) + ", " + std::to_string(heads) + ", " +
                         std::to_string(size) + ") and " + layer.dtype_name);
    if (!t.dense()) refuse(name, std::string(name) + ": the last axis has to be dense");
    return t;
}

Tensor read_cache(nb::handle object, const char *name, const BoundLayer &layer, Py_ssize_t size) {
    Tensor t = read(object, name, 4);
    nb::object dtype = object.attr("dtype");
    if (t.shape[1] != layer.num_kv_heads || t.shape[3] != size || t.shape[2] < 1 || !dtype.is(layer.dtype))
        refuse("kv_cache", std::string(name) + " cache of shape " + shape_text(t) + " and " + name_of(dtype) +
                               ": expected (blocks, " + std::to_string(layer.num_kv_heads) + ", block size, " +
                               std::to_string(size) + ") and " + layer.dtype_name);
    if (!t.dense()) refuse("kv_cache", std::string(name) + " cache: the content has to be dense");
    return t;
}

struct Caches {
    Tensor key, value;
    int block_size;
};

Caches read_caches(nb::handle key, nb::handle value, const BoundLayer &layer) {
    Caches c{read_cache(key, "key", layer, layer.head_size), read_cache(value, "value", layer, layer.v_head_size), 0};
    if (c.key.shape[0] != c.value.shape[0] || c.key.shape[2] != c.value.shape[2])
        refuse("kv_cache", "key cache of shape " + shape_text(c.key) + " and value cache of shape " +
                               shape_text(c.value) + " differ in blocks or block size");
    if (c.key.shape[2] > INT_MAX) refuse("kv_cache", "a block of more than 2147483647 tokens");
    c.block_size = static_cast<int>(c.key.shape[2]);
    return c;
}

void write_kv_cache(const BoundLayer &layer, const BoundStep &step, nb::handle key, nb::handle value,
                    nb::handle key_cache, nb::handle value_cache, int threads) {
    const int count = step.num_new_keys;
    Tensor k = read_rows(key, "key", layer, count, layer.num_kv_heads, layer.head_size);
    Tensor v = read_rows(value, "value", layer, count, layer.num_kv_heads, layer.v_head_size);
    Caches caches = read_caches(key_cache, value_cache, layer);
    if (layer.shares_cache || count == 0) return;
    if (!step.has_slots)
        refuse("slot_mapping", std::to_string(count) + " new keys, slot_mapping has none");
    if (step.largest_slot >= int64_t{caches.key.shape[0]} * caches.block_size)
        throw std::out_of_range("slot " + std::to_string(step.largest_slot) + " is out of bounds: the cache has " +
                                std::to_string(caches.key.shape[0]) + " blocks of " +
                                std::to_string(caches.block_size) + " tokens");
    const ptrdiff_t item = layer.item_size();
    const Origin from[2] = {{k.data, k.stride[0] * item, k.stride[1] * item},
                            {v.data, v.stride[0] * item, v.stride[1] * item}};
    auto target = [&](const Tensor &t) {
        return Target{t.data, t.stride[0] * item, t.stride[1] * item, t.stride[2] * item};
    };
    const Target to[2] = {target(caches.key), target(caches.value)};
    const size_t bytes[2] = {size_t(layer.head_size * item), size_t(layer.v_head_size * item)};
    nb::gil_scoped_release released;
    write(step, layer.num_kv_heads, caches.block_size, from, to, bytes, threads);
}

template <class T>
void run(const BoundLayer &layer, const BoundStep &step, const Tensor &query, const Tensor &keys, const Tensor &values,
         int block_size, const Tensor &out, const std::optional<Tensor> &lse, int threads) {
    auto source = [&](const Tensor &t) {
        Source<T> s;
        s.data = reinterpret_cast<const T *>(t.data);
        s.block_size = block_size;
        if (block_size) s.block = t.stride[0], s.head = t.stride[1], s.token = t.stride[2];
        else s.token = t.stride[0], s.head = t.stride[1];
        return s;
    };
    Call<T> call{layer,
                 step,
                 {reinterpret_cast<const T *>(query.data), query.stride[0], query.stride[1]},
                 source(keys),
                 source(values),
                 {reinterpret_cast<T *>(out.data), out.stride[0], out.stride[1]}};
    if (lse) {
        call.lse = reinterpret_cast<float *>(lse->data);
        call.lse_head = lse->stride[0];
        call.lse_token = lse->stride[1];
    }
    attend(call, threads);
    for (Py_ssize_t row = step.num_tokens; row < out.shape[0]; row++) {
        for (int h = 0; h < layer.num_heads; h++) {
            std::memset(call.out.at(row, h), 0, sizeof(T) * layer.v_head_size);
            if (lse) call.lse[h * call.lse_head + row * call.lse_token] = -INFINITE;
        }
    }
}

void attention(const BoundLayer &layer, const BoundStep &step, nb::handle query, nb::handle keys, nb::handle values,
               bool cached, nb::handle out, nb::handle lse, int threads) {
    if (step.cut_for[0] != layer.num_heads || step.cut_for[1] != layer.num_kv_heads)
        refuse("plan", "the plan was made for other heads");
    Tensor q = read_rows(query, "query", layer, step.num_tokens, layer.num_heads, layer.head_size);
    Tensor o = read_rows(out, "out", layer, step.num_tokens, layer.num_heads, layer.v_head_size);
    if (q.shape[0] != o.shape[0])
        refuse("out", "out has " + std::to_string(o.shape[0]) + " rows, query " + std::to_string(q.shape[0]));
    Tensor k, v;
    int block_size = 0;
    if (cached) {
        Caches caches = read_caches(keys, values, layer);
        k = caches.key, v = caches.value, block_size = caches.block_size;
        if (!step.has_table) refuse("block_table", "a cache needs batch.block_table");
        if (step.cut_for[2] != block_size)
            refuse("kv_cache", "the plan was made for blocks of " + std::to_string(step.cut_for[2]) +
                                   " tokens, the cache has blocks of " + std::to_string(block_size));
        if (step.largest_block >= k.shape[0])
            throw std::out_of_range("block " + std::to_string(step.largest_block) +
                                    " is out of bounds: the cache has " + std::to_string(k.shape[0]) + " blocks");
    } else {
        k = read_rows(keys, "key", layer, step.num_new_keys, layer.num_kv_heads, layer.head_size);
        v = read_rows(values, "value", layer, step.num_new_keys, layer.num_kv_heads, layer.v_head_size);
        for (size_t i = 0; i < step.sequences.size(); i++) {
            const Sequence &s = step.sequences[i];
            int end = i + 1 < step.sequences.size() ? step.sequences[i + 1].key_start : step.num_new_keys;
            if (s.num_queries > 0 && end - s.key_start != s.num_keys)
                refuse("seq_lens", "sequence " + std::to_string(i) + ": " + std::to_string(end - s.key_start) +
                                       " new keys of " + std::to_string(s.num_keys) + ", and no cache for the rest");
        }
    }
    std::optional<Tensor> l;
    if (!lse.is_none()) {
        l = read(lse, "lse", 2);
        if (l->shape[0] != layer.num_heads || l->shape[1] != q.shape[0] ||
            name_of(lse.attr("dtype")) != "torch.float32")
            refuse("lse", "lse of shape " + shape_text(*l) + ": expected (heads, rows of the query), float32");
    }
    nb::gil_scoped_release released;
    switch (layer.storage) {
        case Storage::float32: return run<float>(layer, step, q, k, v, block_size, o, l, threads);
        case Storage::bfloat16: return run<bfloat16>(layer, step, q, k, v, block_size, o, l, threads);
        case Storage::float16: return run<float16>(layer, step, q, k, v, block_size, o, l, threads);
    }
}

BoundLayer make_layer(int num_heads, int num_kv_heads, int head_size, int v_head_size, nb::object dtype, float scale,
                      float soft_cap, std::vector<float> sinks, std::vector<float> slopes, bool shares_cache) {
    BoundLayer layer;
    layer.dtype_name = name_of(dtype);
    if (layer.dtype_name == "torch.float32") layer.storage = Storage::float32;
    else if (layer.dtype_name == "torch.bfloat16") layer.storage = Storage::bfloat16;
    else if (layer.dtype_name == "torch.float16") layer.storage = Storage::float16;
    else refuse("dtype", layer.dtype_name + ": the kernels take torch.float32, torch.bfloat16 and torch.float16");
    if (num_kv_heads < 1 || num_heads < num_kv_heads || num_heads % num_kv_heads || num_heads / num_kv_heads > 256)
        refuse("num_heads", std::to_string(num_heads) + " heads over " + std::to_string(num_kv_heads) + " key heads");
    for (int size : {head_size, v_head_size})
        if (size < 16 || size > 256 || size % 16)
            refuse("head_size", std::to_string(size) + ": a head has a multiple of 16 elements, at most 256");
    for (const auto *per_head : {&sinks, &slopes})
        if (!per_head->empty() && static_cast<int>(per_head->size()) != num_heads)
            refuse("num_heads", std::to_string(per_head->size()) + " numbers for " + std::to_string(num_heads) + " heads");
    layer.num_heads = num_heads;
    layer.num_kv_heads = num_kv_heads;
    layer.head_size = head_size;
    layer.v_head_size = v_head_size;
    layer.dtype = std::move(dtype);
    layer.scale = scale;
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
    nb::gil_scoped_release released;
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

}  // namespace
}  // namespace hardpoint::HARDPOINT_ISA

NB_MODULE(HARDPOINT_MODULE, m) {
    using namespace hardpoint::HARDPOINT_ISA;
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
    m.def("layer", &make_layer, "num_heads"_a, "num_kv_heads"_a, "head_size"_a, "v_head_size"_a, "dtype"_a, "scale"_a,
          "soft_cap"_a, "sinks"_a, "slopes"_a, "shares_cache"_a);
    m.def("step", &make_step, "num_heads"_a, "num_kv_heads"_a, "block_size"_a, "bfloat"_a, "causal"_a, "window"_a,
          "query_starts"_a, "seq_lens"_a, "key_starts"_a, "table"_a.none(), "slots"_a.none(), "threads"_a);
    m.def("write_kv_cache", &write_kv_cache);
    m.def("attention", &attention, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
          nb::arg().none(), nb::arg());
    m.def("read", &read_memory);
    m.attr("instruction_set") = HARDPOINT_ISA_NAME;
}
