// What Python calls: pointers and sizes as numbers. Sizes, types and devices were checked there.
#include <pybind11/pybind11.h>

#include <cstring>
#include <string>

#include "interface.h"

using Address = unsigned long long;

static Layer layer_of(const std::string& bytes) {
  Layer layer;
  std::memcpy(&layer, bytes.data(), sizeof(layer));
  return layer;
}

static void* pointer(Address address) { return reinterpret_cast<void*>(address); }

// An empty text, or what went wrong.
std::string run(int direction, Address input, Address weight, Address bias, Address output, Address workspace,
                const std::string& layer, int device, Address stream) {
  const Tensors tensors = {pointer(input), pointer(weight), pointer(bias), pointer(output), pointer(workspace)};
  const int error = launch_on(device, direction, tensors, layer_of(layer), pointer(stream));
  return error == 0 ? std::string() : error_text(error);
}

long long workspace(int direction, const std::string& layer) { return workspace_bytes(direction, layer_of(layer)); }
