// Where the taps of an axis read, for the kernels that unroll them: constants once the loops are unrolled. Included
// once per element type by tests, so without guards.
namespace direct_taps {

__device__ __forceinline__ int offset_of(const DirectAxis axis, int tap) {
  const int reach = axis.pad_residue - tap * axis.dilation;
  return reach >= 0 ? (reach + axis.stride - 1) / axis.stride : -(-reach / axis.stride);
}

// The residue of the output that a tap serves.
__device__ __forceinline__ int residue_of(const DirectAxis axis, int tap) {
  return offset_of(axis, tap) * axis.stride - axis.pad_residue + tap * axis.dilation;
}

__device__ __forceinline__ int divide(int value, const DirectDivisor& by) {
  return static_cast<int>(static_cast<tconv_device::u64>(static_cast<unsigned>(value)) * by.multiplier >> by.shift);
}

}  // namespace direct_taps
