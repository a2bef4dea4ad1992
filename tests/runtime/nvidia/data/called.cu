// What calls.cu calls.
__device__ int totals[4];
__device__ int factor = 3;

__device__ int tripled(int value) {
  __shared__ int kept[8];
  kept[value & 7] = value;
  __syncthreads();
  return value * factor + kept[(value + 1) & 7];
}
