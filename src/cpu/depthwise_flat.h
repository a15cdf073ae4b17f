// Forward of small images with one channel a group, whose rows lie side by side: all rows of an image as one line.
#pragma once

#include <memory>

#include "core/family.h"
#include "cpu/tile.h"

namespace tconv::cpu {

// nullptr: there are several phases, or rows that fill vectors by themselves.
std::shared_ptr<const Kernel> make_depthwise_flat(const Problem& problem, const AxisMaps& maps);

}  // namespace tconv::cpu
