// For tests: replaces operator new and delete in the whole program. The file that includes this defines the two functions
// below, in namespace unisono::replaced_new. Include it in exactly one file of a program.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

namespace unisono::replaced_new {

// Returns null if there is no memory. alignment 0 means the default alignment.
void* allocate(size_t bytes, size_t alignment);
void release(void* memory);

inline void* from_heap(size_t bytes, size_t alignment) {
  if (alignment <= __STDCPP_DEFAULT_NEW_ALIGNMENT__) return std::malloc(bytes == 0 ? 1 : bytes);
  return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

inline void* allocate_or_throw(size_t bytes, size_t alignment) {
  auto* memory = allocate(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace unisono::replaced_new

void* operator new(size_t bytes) { return unisono::replaced_new::allocate_or_throw(bytes, 0); }
void* operator new[](size_t bytes) { return unisono::replaced_new::allocate_or_throw(bytes, 0); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return unisono::replaced_new::allocate_or_throw(bytes, static_cast<size_t>(alignment));
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return unisono::replaced_new::allocate_or_throw(bytes, static_cast<size_t>(alignment));
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return unisono::replaced_new::allocate(bytes, 0); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return unisono::replaced_new::allocate(bytes, 0); }
void operator delete(void* memory) noexcept { unisono::replaced_new::release(memory); }
void operator delete[](void* memory) noexcept { unisono::replaced_new::release(memory); }
void operator delete(void* memory, size_t) noexcept { unisono::replaced_new::release(memory); }
void operator delete[](void* memory, size_t) noexcept { unisono::replaced_new::release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { unisono::replaced_new::release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { unisono::replaced_new::release(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { unisono::replaced_new::release(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { unisono::replaced_new::release(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { unisono::replaced_new::release(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { unisono::replaced_new::release(memory); }
