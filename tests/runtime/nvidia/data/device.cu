// Kernels as a device is given them: addresses of buffers, then 64-bit integers.
extern "C" __global__ void nothing(unsigned *state) {}

// One link of a chain: the order of links matters, and none may be lost.
extern "C" __global__ void link64(unsigned *state, long long number) {
  state[threadIdx.x] = state[threadIdx.x] * 1664525u + (unsigned)number;
}

// The same, launched before the one before is done.
extern "C" __global__ void link64_early(unsigned *state, long long number) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  state[threadIdx.x] = state[threadIdx.x] * 1664525u + (unsigned)number;
}

// Every block reads what another block of the kernel before has written.
extern "C" __global__ void turn(unsigned *out, const unsigned *in, long long count, long long by) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < count) out[i] = in[(i + by) % count] * 3u + (unsigned)by;
}

// The same by loads that take what they read for constant.
extern "C" __global__ void turn_fetched(unsigned *out, const unsigned *in, long long count,
                                        long long by) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < count) out[i] = __ldg(in + (i + by) % count) * 3u + (unsigned)by;
}

// The two, launched before the one before is done.
extern "C" __global__ void turn_early(unsigned *out, const unsigned *in, long long count,
                                      long long by) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  if (i < count) out[i] = in[(i + by) % count] * 3u + (unsigned)by;
}

extern "C" __global__ void turn_fetched_early(unsigned *out, const unsigned *in, long long count,
                                              long long by) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  if (i < count) out[i] = __ldg(in + (i + by) % count) * 3u + (unsigned)by;
}

extern "C" __global__ void add(float *out, const float *a, const float *b, long long count) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < count) out[i] = a[i] + b[i];
}

// Every thread keeps 64 words on its stack, at places that are known only when it runs.
extern "C" __global__ void stacked(unsigned *out, long long stride) {
  unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned kept[64];
#pragma unroll 1
  for (unsigned i = 0; i < 64; i++) kept[(i * (unsigned)stride) & 63] = thread + i;
  unsigned sum = 0;
#pragma unroll 1
  for (unsigned i = 0; i < 64; i++) sum = sum * 31 + kept[(i * (unsigned)stride + thread) & 63];
  out[thread] = sum;
}

extern "C" __global__ void store64(unsigned *out, long long offset) {
  out[offset + threadIdx.x] = 7;
}

extern "C" __global__ void trapped64(unsigned *out) {
  asm volatile("trap;");
}

extern "C" __global__ void endless(volatile unsigned *flag) {
  while (*flag != 0xFFFFFFFFu) {
  }
}

// Takes a while: `turns` dependent steps.
extern "C" __global__ void slow(unsigned *out, long long turns) {
  unsigned value = threadIdx.x;
  for (long long i = 0; i < turns; i++) value = value * 1664525u + 1013904223u;
  out[threadIdx.x] = value;
}
