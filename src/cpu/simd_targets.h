// The instruction sets that the inner loops are built for; included before Highway.
#pragma once

// SSSE3 adds nothing to SSE4 here, and the scalable instruction sets allow no arrays of vectors.
#define TCONV_LEFT_OUT (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)

// Instrumented code takes minutes to compile: of the two sets with vectors of 16 bytes one will do.
#if defined(__SANITIZE_ADDRESS__)
#define HWY_DISABLED_TARGETS (TCONV_LEFT_OUT | HWY_SSE4)
#else
#define HWY_DISABLED_TARGETS TCONV_LEFT_OUT
#endif
