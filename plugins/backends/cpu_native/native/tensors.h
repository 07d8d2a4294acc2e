// Tensors as they come from Python: checked before any memory is touched, and read through their Python attributes, so
// that no torch release can break a module that was built with another.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <climits>
#include <stdexcept>
#include <string>

#include "step.h"

namespace nb = nanobind;

namespace hardpoint::HARDPOINT_ISA {
namespace {

// Becomes hardpoint.errors.ConfigError.
struct Refusal : std::runtime_error {
    std::string field;
    Refusal(std::string field_, const std::string &message) : std::runtime_error(message), field(std::move(field_)) {}
};

[[noreturn]] void refuse(const char *field, const std::string &message) { throw Refusal(field, message); }

struct BoundLayer : Layer {
    nb::object dtype, cache_dtype;
    std::string dtype_name, cache_dtype_name;
    bool shares_cache = false;
};

struct BoundStep : Step {
    std::array<int, 4> cut_for{};  // heads, key heads, window, kind of storage: what the items depend on
};

struct Tensor {
    int dimensions = 0, item = 0;  // bytes of an element
    Py_ssize_t shape[4] = {}, stride[4] = {};
    char *data = nullptr;
    bool dense() const { return stride[dimensions - 1] == 1 || shape[dimensions - 1] <= 1; }
};

std::string shape_text(const Tensor &t, bool without_head = false) {
    std::string text = "(";
    for (int i = 0; i < t.dimensions; i++)
        if (i != 1 || !without_head) text += (i ? ", " : "") + std::to_string(t.shape[i]);
    return text + (t.dimensions == 1 ? ",)" : ")");
}

// Gives a latent tensor the axis of its one head, after the first.
void insert_head(Tensor &t) {
    for (int i = t.dimensions++; i > 1; i--) t.shape[i] = t.shape[i - 1], t.stride[i] = t.stride[i - 1];
    t.shape[1] = 1, t.stride[1] = 0;
}

std::string name_of(nb::handle dtype) { return nb::cast<std::string>(nb::str(dtype)); }

// The attributes of tensors, made once: a call reads some thirty.
struct Names {
    PyObject *shape = made("shape"), *stride = made("stride"), *is_cpu = made("is_cpu"), *data_ptr = made("data_ptr"),
             *dtype = made("dtype");

    static PyObject *made(const char *text) {
        PyObject *name = PyUnicode_InternFromString(text);
        if (name == nullptr) throw nb::python_error();
        return name;
    }
    static const Names &all() {
        static const Names names;
        return names;
    }
};

nb::object get(nb::handle object, PyObject *name) {
    PyObject *found = PyObject_GetAttr(object.ptr(), name);
    if (found == nullptr) throw nb::python_error();
    return nb::steal(found);
}

nb::object call(nb::handle object, PyObject *method) {
    PyObject *self = object.ptr(), *found = PyObject_VectorcallMethod(method, &self, 1, nullptr);
    if (found == nullptr) throw nb::python_error();
    return nb::steal(found);
}

nb::object dtype_of(nb::handle tensor) { return get(tensor, Names::all().dtype); }

// Errors: whatever Python says where this is no tensor.
Tensor read(nb::handle object, const char *name, int dimensions) {
    Tensor t;
    const Names &names = Names::all();
    nb::object shape = get(object, names.shape), stride = call(object, names.stride);
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
    if (!nb::cast<bool>(get(object, names.is_cpu))) refuse(name, std::string(name) + " is not on the CPU");
    t.data = reinterpret_cast<char *>(nb::cast<uintptr_t>(call(object, names.data_ptr)));
    bool empty = false;
    for (int i = 0; i < t.dimensions; i++) empty |= t.shape[i] == 0;
    // What was taken away for a while (a resized storage) keeps its shape.
    if (t.data == nullptr && !empty) refuse(name, std::string(name) + " of shape " + shape_text(t) + " has no memory");
    return t;
}

// A packed tensor of the step: (at least rows, heads, size) of the layer's dtype; the latent's has no heads.
Tensor read_rows(nb::handle object, const char *name, const BoundLayer &layer, Py_ssize_t rows, Py_ssize_t heads,
                 Py_ssize_t size, bool latent = false) {
    Tensor t = read(object, name, latent ? 2 : 3);
    if (latent) insert_head(t);
    nb::object dtype = dtype_of(object);
    if (t.shape[0] < rows || t.shape[1] != heads || t.shape[2] != size || !dtype.is(layer.dtype))
        refuse(name, std::string(name) + " of shape " + shape_text(t, latent) + " and " + name_of(dtype) +
                         ": expected (at least " + std::to_string(rows) + ", " +
                         (latent ? "" : std::to_string(heads) + ", ") + std::to_string(size) + ") and " +
                         layer.dtype_name);
    if (!t.dense()) refuse(name, std::string(name) + ": the last axis has to be dense");
    t.item = size_of(layer.storage);
    return t;
}

Tensor read_cache(nb::handle object, const char *name, const BoundLayer &layer, Py_ssize_t size) {
    Tensor t = read(object, "kv_cache", layer.latent ? 3 : 4);
    if (layer.latent) insert_head(t);
    nb::object dtype = dtype_of(object);
    if (t.shape[1] != layer.num_kv_heads || t.shape[3] != size || t.shape[2] < 1 || !dtype.is(layer.cache_dtype))
        refuse("kv_cache", std::string(name) + " cache of shape " + shape_text(t, layer.latent) + " and " +
                               name_of(dtype) + ": expected (blocks, " +
                               (layer.latent ? "" : std::to_string(layer.num_kv_heads) + ", ") + "block size, " +
                               std::to_string(size) + ") and " + layer.cache_dtype_name);
    if (!t.dense()) refuse("kv_cache", std::string(name) + " cache: the content has to be dense");
    if (t.shape[2] > INT_MAX) refuse("kv_cache", "a block of more than 2147483647 tokens");
    t.item = size_of(layer.kept);
    return t;
}

struct Caches {
    Tensor key, value;
    int block_size;
};

Caches read_caches(nb::handle key, nb::handle value, const BoundLayer &layer) {
    Caches c{read_cache(key, layer.latent ? "latent" : "key", layer, layer.head_size), {}, 0};
    c.value = layer.latent ? c.key : read_cache(value, "value", layer, layer.v_head_size);
    if (c.key.shape[0] != c.value.shape[0] || c.key.shape[2] != c.value.shape[2])
        refuse("kv_cache", "key cache of shape " + shape_text(c.key) + " and value cache of shape " +
                               shape_text(c.value) + " differ in blocks or block size");
    c.block_size = static_cast<int>(c.key.shape[2]);
    return c;
}

struct NewRows {
    Tensor key, value;
};

NewRows read_new(nb::handle key, nb::handle value, const BoundLayer &layer, const BoundStep &step) {
    const int count = step.num_new_keys;
    NewRows rows{read_rows(key, "key", layer, count, layer.num_kv_heads, layer.head_size, layer.latent), {}};
    if (!layer.latent) rows.value = read_rows(value, "value", layer, count, layer.num_kv_heads, layer.v_head_size);
    else if (!value.is_none()) refuse("value", "the latent form has no value: it is part of the latent");
    else rows.value = rows.key;
    return rows;
}

// Everything that can be wrong about where new rows go.
void check_slots(const BoundLayer &layer, const BoundStep &step, const Caches &caches) {
    if (layer.shares_cache || step.num_new_keys == 0) return;
    if (!step.has_slots)
        refuse("slot_mapping", std::to_string(step.num_new_keys) + " new keys, slot_mapping has none");
    if (step.largest_slot >= int64_t{caches.key.shape[0]} * caches.block_size)
        throw std::out_of_range("slot " + std::to_string(step.largest_slot) + " is out of bounds: the cache has " +
                                std::to_string(caches.key.shape[0]) + " blocks of " +
                                std::to_string(caches.block_size) + " tokens");
}

}  // namespace
}  // namespace hardpoint::HARDPOINT_ISA
