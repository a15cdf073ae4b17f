// Types that host and device share. Both sides compile this file, so it includes nothing.
#pragma once

namespace tconv_device {

using i32 = int;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;
using u16 = unsigned short;
static_assert(sizeof(i32) == 4 && sizeof(i64) == 8 && sizeof(u16) == 2, "sizes that host and device agree on");

}  // namespace tconv_device
