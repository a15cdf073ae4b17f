// SHA-256 (FIPS 180-4): names and checks the entries of the kernel cache.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace tconv::cuda {

using Digest = std::array<std::uint8_t, 32>;

Digest sha256(std::string_view text);

std::string to_hex(const Digest& digest);

}  // namespace tconv::cuda
