#include "cuda/driver.h"

#include <mutex>
#include <unordered_map>

#include "cuda/shared_library.h"
#include "tconv/error.h"

namespace tconv::cuda {
namespace {

constexpr DriverResult kSuccess = 0;

std::string describe(const Driver& driver, DriverResult result) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (driver.get_error_name(result, &name) != kSuccess || name == nullptr) name = "unknown error";
  if (driver.get_error_string(result, &text) != kSuccess || text == nullptr) text = "no description";
  return std::string(name) + " (" + std::to_string(result) + "): " + text;
}

void resolve_all(void* library, Driver& table) {
  resolve(library, "cuInit", table.init);
  resolve(library, "cuDriverGetVersion", table.driver_get_version);
  resolve(library, "cuGetErrorName", table.get_error_name);
  resolve(library, "cuGetErrorString", table.get_error_string);
  resolve(library, "cuDeviceGetCount", table.device_get_count);
  resolve(library, "cuDeviceGet", table.device_get);
  resolve(library, "cuDeviceGetName", table.device_get_name);
  resolve(library, "cuDeviceGetAttribute", table.device_get_attribute);
  resolve(library, "cuDevicePrimaryCtxRetain", table.primary_context_retain);
  resolve(library, "cuCtxGetCurrent", table.context_get_current);
  resolve(library, "cuCtxPushCurrent_v2", table.context_push);
  resolve(library, "cuCtxPopCurrent_v2", table.context_pop);
  resolve(library, "cuThreadExchangeStreamCaptureMode", table.thread_exchange_capture_mode);
  resolve(library, "cuStreamIsCapturing", table.stream_is_capturing);
  resolve(library, "cuEventCreate", table.event_create);
  resolve(library, "cuEventDestroy_v2", table.event_destroy);
  resolve(library, "cuEventRecord", table.event_record);
  resolve(library, "cuEventSynchronize", table.event_synchronize);
  resolve(library, "cuEventElapsedTime", table.event_elapsed_time);
  resolve(library, "cuMemsetD32Async", table.memset_d32_async);
  resolve(library, "cuModuleLoadData", table.module_load_data);
  resolve(library, "cuModuleGetFunction", table.module_get_function);
  resolve(library, "cuFuncSetAttribute", table.function_set_attribute);
  resolve(library, "cuFuncGetAttribute", table.function_get_attribute);
  resolve(library, "cuLaunchKernel", table.launch_kernel);
  table.launch_kernel_ex = reinterpret_cast<decltype(table.launch_kernel_ex)>(::dlsym(library, "cuLaunchKernelEx"));
  table.tensor_map_encode_tiled =
      reinterpret_cast<decltype(table.tensor_map_encode_tiled)>(::dlsym(library, "cuTensorMapEncodeTiled"));
}

struct Opened {
  Driver table;
  std::string problem;  // empty: usable
};

Opened open_driver() {
  Opened opened;
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    opened.problem = "CUDA needs the NVIDIA driver (libcuda.so.1), which this machine does not have";
    return opened;
  }
  try {
    resolve_all(library, opened.table);
  } catch (const Error& error) {
    opened.problem = "CUDA needs an NVIDIA driver of version 450 or later: " + std::string(error.what());
    return opened;
  }
  if (const DriverResult result = opened.table.init(0); result != kSuccess) {
    opened.problem = "the NVIDIA driver is installed but cannot be used: " + describe(opened.table, result);
  }
  return opened;
}

const Opened& opened_driver() {
  static const Opened opened = open_driver();
  return opened;
}

}  // namespace

const Driver& driver() {
  const Opened& opened = opened_driver();
  if (!opened.problem.empty()) throw Error(opened.problem);
  return opened.table;
}

void check(DriverResult result, std::string_view attempted) {
  if (result == kSuccess) return;
  throw Error("CUDA could not " + std::string(attempted) + ": " + describe(driver(), result));
}

int device_count() {
  int count = 0;
  check(driver().device_get_count(&count), "count the GPUs");
  return count;
}

int driver_version() {
  int version = 0;
  check(driver().driver_get_version(&version), "tell the driver's version");
  return version;
}

DriverContext primary_context(int device) {
  static std::mutex mutex;
  static std::unordered_map<int, DriverContext> contexts;
  const std::scoped_lock lock(mutex);
  if (const auto found = contexts.find(device); found != contexts.end()) return found->second;
  int handle = 0;
  check(driver().device_get(&handle, device), "open GPU " + std::to_string(device));
  DriverContext context = nullptr;
  check(driver().primary_context_retain(&context, handle),
        "retain the primary context of GPU " + std::to_string(device));
  contexts.emplace(device, context);
  return context;
}

ContextScope::ContextScope(DriverContext context) {
  DriverContext current = nullptr;
  check(driver().context_get_current(&current), "tell the current context");
  if (current == context) return;
  check(driver().context_push(context), "make the GPU's context current");
  pushed_ = true;
}

ContextScope::~ContextScope() {
  DriverContext popped = nullptr;
  if (pushed_) opened_driver().table.context_pop(&popped);
}

RelaxedCaptureScope::RelaxedCaptureScope() {
  check(driver().thread_exchange_capture_mode(&mode_), "relax the thread's stream capture mode");
}

RelaxedCaptureScope::~RelaxedCaptureScope() { opened_driver().table.thread_exchange_capture_mode(&mode_); }

}  // namespace tconv::cuda
