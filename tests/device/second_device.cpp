// A second device for torch, named by second_device.py, whose memory is the processor's own.
//
// It computes nothing itself: every operator runs on the processor, on copies of its arguments. As on a real device,
// tensors of two devices may not meet, and the host waits where it needs a value or a shape that the device has still
// to compute; each of these waits is reported to Python.

#include <ATen/ATen.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

using at::IntArrayRef;
using at::Tensor;
using std::optional;

constexpr auto KIND = c10::DeviceType::PrivateUse1;
const c10::Device THE_DEVICE(KIND, 0);

py::object listener = py::none();
// How many operators of the device are being computed: what they copy is no wait of the host.
thread_local int computing = 0;

void report_wait(const std::string& operation) {
  if (computing > 0) return;
  py::gil_scoped_acquire lock;
  if (!listener.is_none()) listener(operation);
}

// Memory

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes ? ::operator new(bytes) : nullptr;
    return {data, data, &release, THE_DEVICE};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
  static void release(void* data) { ::operator delete(data); }
};
Memory memory;
REGISTER_ALLOCATOR(KIND, &memory);

Tensor empty(IntArrayRef sizes, optional<at::ScalarType> dtype, optional<at::Layout>, optional<at::Device>,
             optional<bool>, optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(sizes, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(IntArrayRef sizes, IntArrayRef strides, optional<at::ScalarType> dtype, optional<at::Layout>,
                     optional<at::Device>, optional<bool>) {
  return at::detail::empty_strided_generic(sizes, strides, &memory,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

const Tensor& resize(const Tensor& tensor, IntArrayRef sizes, optional<at::MemoryFormat>) {
  at::native::resize_impl_cpu_(tensor.unsafeGetTensorImpl(), sizes, std::nullopt);
  return tensor;
}

// Copies, and values that the host asks for

Tensor seen_by_host(const Tensor& tensor) {
  if (!tensor.is_privateuseone()) return tensor;
  auto view = at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
  return tensor.is_conj() ? view.conj() : view;
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  if (to.is_cpu()) report_wait("copy to the host");
  if (from.is_cpu() && !non_blocking) report_wait("blocking copy to the device");
  at::NoGradGuard no_gradients;
  seen_by_host(to).copy_(seen_by_host(from));
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar value_of(const Tensor& tensor) {
  report_wait("value of a tensor");
  return seen_by_host(tensor).item();
}

// Operators

bool shape_follows_from_values(const std::string& name, const std::vector<Tensor>& indices) {
  for (const char* asking : {"aten::nonzero", "aten::masked_select", "aten::unique", "aten::_unique", "aten::equal",
                             "aten::repeat_interleave.Tensor"})
    if (name.rfind(asking, 0) == 0) return true;
  return std::any_of(indices.begin(), indices.end(), [](const Tensor& index) { return index.scalar_type() == at::kBool; });
}

void compute_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto name = c10::toString(op.operator_name());
  const auto& arguments = op.schema().arguments();
  const bool takes_indices = name.rfind("aten::index", 0) == 0 || name.rfind("aten::_index_put", 0) == 0;
  bool on_device = false;
  std::string stranger;
  std::vector<Tensor> indices;
  auto look_at = [&](const Tensor& tensor, const c10::Argument& argument) {
    if (!tensor.defined()) return;
    const bool is_index = takes_indices && argument.name() == "indices";
    if (is_index) indices.push_back(tensor);
    if (tensor.is_privateuseone()) on_device = true;
    else if (tensor.dim() > 0 && is_index) report_wait("indices copied to the device");
    else if (tensor.dim() > 0) stranger = argument.name();
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto& value = (*stack)[stack->size() - arguments.size() + i];
    if (value.isTensor()) look_at(value.toTensor(), arguments[i]);
    else if (value.isList())
      for (const c10::IValue& part : value.toListRef())
        if (part.isTensor()) look_at(part.toTensor(), arguments[i]);
  }
  TORCH_CHECK(!on_device || stranger.empty(), name, ": ", stranger, " is on the host, other tensors on the device");
  if (shape_follows_from_values(name, indices)) report_wait(name);
  struct Computing {
    Computing() { ++computing; }
    ~Computing() { --computing; }
  } guard;
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("resize_", &resize);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &value_of);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", static_cast<Tensor (*)(const Tensor&, IntArrayRef)>(&at::native::view));
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  m.impl("set_.source_Storage", static_cast<Tensor& (*)(Tensor&, at::Storage)>(&at::native::set_));
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&compute_on_host>()); }

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(scaled_dot_product_attention, lower_precision_fp)
}

// What torch asks of a device that has one stream and needs no events

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return KIND; }
  c10::Device getDevice() const override { return THE_DEVICE; }
  c10::Device exchangeDevice(c10::Device) const override { return THE_DEVICE; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getStream(c10::Device) const override { return c10::Stream(c10::Stream::DEFAULT, THE_DEVICE); }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override { report_wait("synchronize"); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::globalContext().defaultGenerator(at::kCPU);
  }
};

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  m.def("listen", [](py::object function) { listener = std::move(function); });
}
