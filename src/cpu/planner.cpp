#include <array>

#include "core/family.h"
#include "core/parallel.h"
#include "cpu/families.h"

namespace tconv::cpu {
namespace {

constexpr std::array kFamilies = {
    Family{"columns", propose_columns}, Family{"depthwise", propose_depthwise}, Family{"winograd", propose_winograd},
    Family{"phases", propose_phases},   Family{"reference", propose_reference},
};

}  // namespace

std::span<const Family> families() { return kFamilies; }

DeviceProperties properties() {
  DeviceProperties properties;
  properties.device = {Backend::cpu, 0};
  properties.name = "cpu";
  properties.threads = thread_count();
  return properties;
}

}  // namespace tconv::cpu
