// Kernels that tell whether a launch did what it was asked for. One fails on purpose, one may be
// given an address that does.
extern "C" __global__ void dims(unsigned *out) {
  unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  unsigned *mine = out + 12 * (block * threads + thread);
  mine[0] = blockIdx.x, mine[1] = blockIdx.y, mine[2] = blockIdx.z;
  mine[3] = threadIdx.x, mine[4] = threadIdx.y, mine[5] = threadIdx.z;
  mine[6] = blockDim.x, mine[7] = blockDim.y, mine[8] = blockDim.z;
  mine[9] = gridDim.x, mine[10] = gridDim.y, mine[11] = gridDim.z;
}

// Fills `words` words of shared memory, and writes them out backwards.
extern "C" __global__ void shared(unsigned *out, unsigned words, unsigned factor) {
  extern __shared__ unsigned kept[];
  for (unsigned i = threadIdx.x; i < words; i += blockDim.x) kept[i] = i * factor + blockIdx.x;
  __syncthreads();
  for (unsigned i = threadIdx.x; i < words; i += blockDim.x)
    out[blockIdx.x * words + i] = kept[words - 1 - i];
}

// Every thread keeps 64 words on its stack, at places that are known only when it runs.
extern "C" __global__ void local(unsigned *out, unsigned stride) {
  unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned kept[64];
#pragma unroll 1
  for (unsigned i = 0; i < 64; i++) kept[(i * stride) & 63] = thread + i;
  unsigned sum = 0;
#pragma unroll 1
  for (unsigned i = 0; i < 64; i++) sum = sum * 31 + kept[(i * stride + thread) & 63];
  out[thread] = sum;
}

// The same with a stack of 8 KiB, wider than what other kernels have.
extern "C" __global__ void deeper(unsigned *out, unsigned stride) {
  unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned kept[2048];
#pragma unroll 1
  for (unsigned i = 0; i < 2048; i++) kept[(i * stride) & 2047] = thread + i;
  unsigned sum = 0;
#pragma unroll 1
  for (unsigned i = 0; i < 2048; i++) sum = sum * 31 + kept[(i * stride + thread) & 2047];
  out[thread] = sum;
}

// One link of a chain: the order of links matters, and none may be lost.
extern "C" __global__ void link(unsigned *state, unsigned number) {
  state[threadIdx.x] = state[threadIdx.x] * 1664525u + number;
}

// Each block of a cluster of two reads the other's shared memory.
extern "C" __global__ void pairs(unsigned *out) {
#if __CUDA_ARCH__ >= 900
  __shared__ unsigned kept[32];
  unsigned rank, count, cluster, theirs, value;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(count));
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(cluster));
  kept[threadIdx.x] = 1000 * blockIdx.x + threadIdx.x;
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
  unsigned mine = (unsigned)__cvta_generic_to_shared(&kept[31 - threadIdx.x]);
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(theirs) : "r"(mine), "r"(rank ^ 1));
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(theirs) : "memory");
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
  unsigned *to = out + 4 * (blockIdx.x * blockDim.x + threadIdx.x);
  to[0] = value, to[1] = rank, to[2] = count, to[3] = cluster;
#endif
}

extern "C" __global__ void trapped() {
  asm volatile("trap;");
}

extern "C" __global__ void store(unsigned *out, unsigned value) {
  out[threadIdx.x] = value;
}
