// The CUDA driver (libcuda), opened when it is first needed: building the library needs no CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tconv::cuda {

// The driver's handles are opaque; its enumerations are ints.
using DriverResult = int;
using DriverContext = struct DriverContextHandle*;
using DriverModule = struct DriverModuleHandle*;
using DriverFunction = struct DriverFunctionHandle*;
using DriverStream = struct DriverStreamHandle*;
using DriverEvent = struct DriverEventHandle*;

// CUdevice_attribute
enum class DeviceAttribute : int {
  clock_khz = 13,
  multiprocessors = 16,
  memory_clock_khz = 36,
  memory_bus_bits = 37,
  l2_bytes = 38,
  major = 75,
  minor = 76,
  shared_bytes_per_multiprocessor = 81,
  shared_bytes_per_block_optin = 97,
};

// CUfunction_attribute
enum class FunctionAttribute : int {
  local_bytes = 3,
  registers = 4,
  max_dynamic_shared_bytes = 8,
};

// CUlaunchAttribute and CUlaunchConfig: what a launch may ask for beyond its shape.
struct LaunchAttribute {
  int id = 0;
  alignas(8) int value = 0;
  char rest_of_value[60] = {};
};
static_assert(sizeof(LaunchAttribute) == 72);
constexpr int kOverlapsPrevious = 6;  // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION

struct LaunchConfig {
  unsigned grid[3] = {1, 1, 1};
  unsigned block[3] = {1, 1, 1};
  unsigned shared_bytes = 0;
  DriverStream stream = nullptr;
  LaunchAttribute* attributes = nullptr;
  unsigned attribute_count = 0;
};

// The functions that the library calls, under the driver's own names.
struct Driver {
  DriverResult (*init)(unsigned flags) = nullptr;
  DriverResult (*driver_get_version)(int* version) = nullptr;
  DriverResult (*get_error_name)(DriverResult error, const char** text) = nullptr;
  DriverResult (*get_error_string)(DriverResult error, const char** text) = nullptr;
  DriverResult (*device_get_count)(int* count) = nullptr;
  DriverResult (*device_get)(int* device, int ordinal) = nullptr;
  DriverResult (*device_get_name)(char* name, int length, int device) = nullptr;
  DriverResult (*device_get_attribute)(int* value, DeviceAttribute attribute, int device) = nullptr;
  DriverResult (*primary_context_retain)(DriverContext* context, int device) = nullptr;
  DriverResult (*context_get_current)(DriverContext* context) = nullptr;
  DriverResult (*context_push)(DriverContext context) = nullptr;
  DriverResult (*context_pop)(DriverContext* context) = nullptr;
  DriverResult (*thread_exchange_capture_mode)(int* mode) = nullptr;
  DriverResult (*stream_is_capturing)(DriverStream stream, int* status) = nullptr;
  DriverResult (*event_create)(DriverEvent* event, unsigned flags) = nullptr;
  DriverResult (*event_destroy)(DriverEvent event) = nullptr;
  DriverResult (*event_record)(DriverEvent event, DriverStream stream) = nullptr;
  DriverResult (*event_synchronize)(DriverEvent event) = nullptr;
  DriverResult (*event_elapsed_time)(float* milliseconds, DriverEvent begin, DriverEvent end) = nullptr;
  DriverResult (*memset_d32_async)(std::uint64_t address, unsigned value, std::size_t count,
                                   DriverStream stream) = nullptr;
  DriverResult (*module_load_data)(DriverModule* module, const void* image) = nullptr;
  DriverResult (*module_get_function)(DriverFunction* function, DriverModule module, const char* name) = nullptr;
  DriverResult (*function_set_attribute)(DriverFunction function, FunctionAttribute attribute, int value) = nullptr;
  DriverResult (*function_get_attribute)(int* value, FunctionAttribute attribute, DriverFunction function) = nullptr;
  DriverResult (*launch_kernel)(DriverFunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                DriverStream stream, void** arguments, void** extra) = nullptr;
  // Null in drivers older than CUDA 11.8.
  DriverResult (*launch_kernel_ex)(const LaunchConfig* config, DriverFunction function, void** arguments,
                                   void** extra) = nullptr;
  // Null in drivers older than CUDA 12.
  DriverResult (*tensor_map_encode_tiled)(void* map, int type, std::uint32_t dimensions, const void* address,
                                          const std::uint64_t* sizes, const std::uint64_t* strides,
                                          const std::uint32_t* box, const std::uint32_t* steps, int interleave,
                                          int swizzle, int promotion, int fill) = nullptr;
};

// Throws Error, saying why, on a machine where the driver is missing or finds nothing to drive.
const Driver& driver();

// Throws Error with the driver's own words when `result` is not success.
void check(DriverResult result, std::string_view attempted);

int device_count();    // throws like driver()
int driver_version();  // 13000 for 13.0; throws like driver()

// The primary context of a device: the one that the CUDA runtime, and so PyTorch, uses. Retained until the process
// ends.
DriverContext primary_context(int device);

// Makes a context current for a scope; costs one query where it is already, as it is inside PyTorch.
class ContextScope {
 public:
  explicit ContextScope(DriverContext context);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  bool pushed_ = false;
};

// Lets this thread load a module while another stream (or its own) is being captured.
class RelaxedCaptureScope {
 public:
  RelaxedCaptureScope();
  ~RelaxedCaptureScope();
  RelaxedCaptureScope(const RelaxedCaptureScope&) = delete;
  RelaxedCaptureScope& operator=(const RelaxedCaptureScope&) = delete;

 private:
  int mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED
};

}  // namespace tconv::cuda
