// Memory of large results on a CPU, kept for the next one when a tensor goes.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>

namespace tconv::front {

// The system clears every page before it hands it out, which takes longer than writing it, and allocators return blocks
// of this size as soon as they are freed: a layer that is called again and again would get new pages each time. So
// freed blocks are kept. TCONV_KEEP_MEMORY limits how much is kept; blocks that were of no use for a while are given
// back, and what exceeds a sixteenth of the machine's memory is marked as memory that the system may take whenever it
// is short of it (MADV_FREE). Null where the system has no such mark.
c10::Allocator* kept_memory();

// Results of fewer bytes are the allocator's business.
inline constexpr std::size_t kFewestKeptBytes = std::size_t{4} << 20U;

// Gives back all that is kept now.
void release_memory();

}  // namespace tconv::front
