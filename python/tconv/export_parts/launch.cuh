#include <cuda_runtime.h>

#include <map>
#include <mutex>
#include <utility>

namespace {

constexpr long long ceil_div(long long a, long long b) { return (a + b - 1) / b; }
constexpr long long at_most(long long a, long long b) { return a < b ? a : b; }

void* at(void* tensor, long long bytes) { return static_cast<char*>(tensor) + bytes; }

// Lets a kernel use more shared memory than every GPU has: asked for once for each device.
int allow_shared_bytes(const void* kernel, int bytes) {
  static std::mutex mutex;
  static std::map<std::pair<int, const void*>, int> allowed;
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device)) return static_cast<int>(error);
  const std::lock_guard<std::mutex> lock(mutex);
  int& known = allowed[std::make_pair(device, kernel)];
  if (known >= bytes) return 0;
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error == cudaSuccess) known = bytes;
  return static_cast<int>(error);
}

// Launches a kernel. With `overlaps` it may start while the one before it still runs, and waits itself for what that
// one writes; older toolkits don't have that, and it starts afterwards.
template <typename... Params, typename... Given>
int launch(void (*kernel)(Params...), dim3 grid, unsigned block, size_t shared_bytes, bool overlaps, void* stream,
           const Given&... given) {
  if (grid.x == 0) return 0;
  if (shared_bytes > 48 * 1024) {
    const int error = allow_shared_bytes(reinterpret_cast<const void*>(kernel), static_cast<int>(shared_bytes));
    if (error != 0) return error;
  }
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
#if CUDART_VERSION >= 12000
  if (overlaps) {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(block);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = on;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return static_cast<int>(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(given)...));
  }
#endif
  kernel<<<grid, block, shared_bytes, on>>>(static_cast<Params>(given)...);
  return static_cast<int>(cudaGetLastError());
}

}  // namespace

// With the GPU that has the tensors, which need not be the thread's current one.
int launch_on(int device, int direction, const Tensors& tensors, const Layer& layer, void* stream) {
  int current = 0;
  if (const cudaError_t error = cudaGetDevice(&current)) return static_cast<int>(error);
  if (current == device) return launch_direction(direction, tensors, layer, stream);
  if (const cudaError_t error = cudaSetDevice(device)) return static_cast<int>(error);
  const int failed = launch_direction(direction, tensors, layer, stream);
  const cudaError_t restored = cudaSetDevice(current);
  return failed != 0 ? failed : static_cast<int>(restored);
}

const char* error_text(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }
