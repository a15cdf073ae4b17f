// Forward of images with one channel a group, whose rows lie side by side.
#pragma once

#include <memory>

#include "core/family.h"
#include "cpu/tile.h"

namespace tconv::cpu {

// Phases along the row have a place each (at most kMostRowPhases). nullptr: there are no rows to share what they read,
// or they are too long, or rows of several phases share too little.
std::shared_ptr<const Kernel> make_depthwise_blocks(const Problem& problem, const AxisMaps& maps);

}  // namespace tconv::cpu
