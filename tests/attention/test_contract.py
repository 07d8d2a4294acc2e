from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from hardpoint._capability import DeviceCapability
from hardpoint.attention import AttentionBackend, AttentionConfig, CacheTensorSpec, GraphSupport, KVCacheSpec
from hardpoint.errors import ConfigError

AXES = ("block", "head", "token", "content")


def tensor_spec(**changes: Any) -> CacheTensorSpec:
    """A cache tensor with some members changed."""
    arguments: dict[str, Any] = {
        "role": "key",
        "axes": AXES,
        "sizes": (2, 16, 8),
        "dtype": "bfloat16",
        "stride_orders": (AXES, ("block", "token", "head", "content")),
    }
    return CacheTensorSpec(**{**arguments, **changes})


def test_a_block_has_a_size_in_bytes() -> None:
    """Bytes per block are the product of sizes and element size, summed over the tensors."""
    spec = KVCacheSpec(tensors=(tensor_spec(), tensor_spec(role="value", sizes=(2, 16, 4), dtype="int8")))
    assert [tensor.bytes_per_block for tensor in spec.tensors] == [2 * 16 * 8 * 2, 2 * 16 * 4]
    assert spec.bytes_per_block == 640


def test_the_layout_is_the_preferred_one_as_text() -> None:
    """The fingerprint compares roles, memory order and dtype."""
    spec = KVCacheSpec(
        tensors=(tensor_spec(stride_orders=(("block", "token", "head", "content"), AXES)), tensor_spec(role="value"))
    )
    assert spec.layout == "key:block-token-head-content:bfloat16 value:block-head-token-content:bfloat16"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"axes": ("head", "block", "token", "content")}, "block first, then token, content, head"),
        ({"axes": ("block", "token"), "sizes": (16,)}, "block first, then token, content, head"),
        ({"axes": ("block", "token", "content", "layer")}, "block first, then token, content, head"),
        ({"axes": (*AXES, "token"), "sizes": (2, 16, 8, 16)}, "do not fit"),
        ({"sizes": (16, 8)}, "do not fit"),
        ({"sizes": (2, 0, 8)}, "do not fit"),
        ({"dtype": "bf16"}, "dtype 'bf16' is none of float64"),
        ({"stride_orders": ()}, "no stride order"),
        ({"stride_orders": (("block", "head", "token"),)}, "is no permutation of"),
    ],
)
def test_a_cache_tensor_that_contradicts_itself_is_refused(changes: dict[str, Any], text: str) -> None:
    """Axes, sizes, dtype and stride orders must fit one another."""
    with pytest.raises(ConfigError, match=r"cache tensor 'key': .*" + text):
        tensor_spec(**changes)


@pytest.mark.torch
@pytest.mark.parametrize("axes", [AXES, ("block", "token", "head", "content"), ("block", "token", "content")])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "int8"])
def test_a_cache_is_allocated_in_every_stride_order(axes: tuple[str, ...], dtype: str) -> None:
    """Whatever the memory order, the tensor is indexed in the order of its axes, and its blocks share no memory."""
    import torch

    size_of = {"block": 5, "head": 2, "token": 3, "content": 4}
    orders = tuple(permutations(axes))
    spec = KVCacheSpec(
        tensors=(
            tensor_spec(axes=axes, sizes=tuple(size_of[axis] for axis in axes[1:]), dtype=dtype, stride_orders=orders),
        )
    )
    for order in orders:
        (tensor,) = spec.allocate(5, device="cpu", stride_orders=[order])
        assert tuple(tensor.shape) == tuple(size_of[axis] for axis in axes)
        assert tensor.dtype == getattr(torch, dtype)
        slowest_first = sorted(axes, key=lambda axis: -tensor.stride(axes.index(axis)))
        assert tuple(slowest_first) == order
        assert tensor.permute([axes.index(axis) for axis in order]).is_contiguous()
        assert not tensor.float().any()
        tensor[3].copy_(torch.ones(tensor.shape[1:]))
        assert [bool((tensor[block].float() == 1).all()) for block in range(5)] == [False, False, False, True, False]
        assert [bool((tensor[block].float() == 0).all()) for block in range(5)] == [True, True, True, False, True]


@pytest.mark.torch
def test_the_best_stride_order_is_the_default() -> None:
    """Without a wish each tensor gets the first order that its kernels accept; roles and dtypes stay their own."""
    spec = KVCacheSpec(
        tensors=(
            tensor_spec(stride_orders=(("block", "token", "head", "content"),)),
            tensor_spec(role="value", dtype="float32"),
        )
    )
    key, value = spec.allocate(3, device="cpu")
    assert key.stride() == (2 * 16 * 8, 8, 16, 1)
    assert value.is_contiguous()
    assert (key.element_size(), value.element_size()) == (2, 4)


@pytest.mark.torch
@pytest.mark.parametrize("alignment", [1, 64, 4096])
def test_the_first_element_is_aligned(alignment: int) -> None:
    """The promised alignment holds beyond what the allocator gives by itself."""
    spec = KVCacheSpec(tensors=(tensor_spec(alignment_bytes=alignment),) * 4)
    for tensor in spec.allocate(3, device="cpu"):
        assert tensor.data_ptr() % alignment == 0


@pytest.mark.torch
def test_an_empty_cache_is_a_cache() -> None:
    """Zero blocks are allocated without complaint."""
    (tensor,) = KVCacheSpec(tensors=(tensor_spec(),)).allocate(0, device="cpu")
    assert tuple(tensor.shape) == (0, 2, 16, 8)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("orders", "text"),
    [
        ([("block", "content", "token", "head")], "stride order .* is none of"),
        ([], "0 stride orders for 1 cache tensors"),
        ([AXES, AXES], "2 stride orders for 1 cache tensors"),
    ],
)
def test_a_stride_order_that_kernels_do_not_accept_is_refused(orders: list[tuple[str, ...]], text: str) -> None:
    """The engine may choose only among what was declared, one order per tensor."""
    with pytest.raises(ConfigError, match=text):
        KVCacheSpec(tensors=(tensor_spec(),)).allocate(2, device="cpu", stride_orders=orders)


def test_what_a_backend_need_not_write() -> None:
    """A backend narrows nothing, prepares nothing and replays no graph unless it says so; the rest is abstract."""
    config = AttentionConfig(head_size=64, num_heads=8, dtype="bf16")
    capability = DeviceCapability(runtime="cpu", arch="x86-64-v4")
    assert AttentionBackend.validate_configuration(capability, config) == []
    AttentionBackend.prepare(config, "cpu")
    assert AttentionBackend.graph_support is GraphSupport.NEVER
    assert AttentionBackend.__abstractmethods__ == {"kv_cache_spec", "create_layer", "plan"}


def test_the_public_names_are_those_of_the_package() -> None:
    """Every name of `hardpoint.attention` loads from where the package says it lives, and no other does."""
    import hardpoint.attention as package

    assert sorted(package.__all__) == sorted(package._HOME)
    assert dir(package) == sorted(package.__all__)
    assert package.AttentionConfig is AttentionConfig
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'AttentionConfiguration'"):
        package.AttentionConfiguration  # noqa: B018  # the access is the test
