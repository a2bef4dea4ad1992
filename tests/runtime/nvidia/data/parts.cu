// Kernels that use what a loader must see to: constants, globals, addresses of globals, shared
// memory, a stack, more than one barrier, bounds, and a cluster where there are some.
__constant__ float scales[4] = {1.0f, 2.0f, 4.0f, 8.0f};
__device__ int started = 7;
__device__ int finished[3];
__device__ int *counters[2] = {&started, &finished[1]};

extern "C" __global__ void halves(float *out, const float *in) {
  __shared__ float tile[256];
  tile[threadIdx.x] = in[threadIdx.x] * scales[blockIdx.x & 3];
  if (threadIdx.x < 128) {
    asm volatile("bar.sync 1, 128;");
  } else {
    asm volatile("bar.sync 2, 128;");
  }
  out[threadIdx.x] = tile[threadIdx.x ^ 1];
  if (threadIdx.x == 0) atomicAdd(counters[blockIdx.x & 1], 1);
}

struct Pair {
  int first;
  double second;
};

extern "C" __global__ void __launch_bounds__(64) deep(int *out, Pair pair, char tag) {
  int kept[64];
  extern __shared__ int more[];
#pragma unroll 1
  for (int i = 0; i < pair.first; i++) kept[out[i] & 63] = i + tag;
  more[threadIdx.x] = kept[(out[threadIdx.x] * 7) & 63];
  __syncthreads();
  out[threadIdx.x] = more[threadIdx.x ^ 3] + started + (int)pair.second;
}

#if __CUDA_ARCH__ >= 900
extern "C" __global__ void __cluster_dims__(2, 1, 1) twins(int *out) {
  out[blockIdx.x] = threadIdx.x;
}
#endif
