// Packing weights as pairs of source channels (bf16_products.h).
#pragma once

#include "cpu/scalar.h"
#include "cpu/simd.h"

namespace tconv::cpu {

// Whether pack_words takes such weights: all taps of a target lie side by side, so many that they are worth it.
bool packs_words(const PackWeights<BFloat16, float>& job);

// pack_weights of two channels at a time, from an even one on: what they have becomes words, an odd last one beside
// zero, and the words of channel c stand where element_ops would put channel c / 2. Nothing is widened.
void pack_words(const PackWeights<BFloat16, float>& job);

}  // namespace tconv::cpu
