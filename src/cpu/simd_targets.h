// The instruction sets that the inner loops are built for; included before Highway.
#pragma once

// SSSE3 adds nothing to SSE4 here, and the scalable instruction sets allow no arrays of vectors.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
