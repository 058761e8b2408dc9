// Scratch memory for the length of one kernel call; a few blocks are kept for the next calls.
// Knows nothing of tensors; it is apart from the tensors' pool so that kernels leave its statistics alone.
#pragma once

#include <cstdint>

namespace tritium {

enum class Need : std::uint8_t { may, must };

class Workspace {
 public:
  // Need::must ends the process with a message when the system refuses; Need::may leaves data() null.
  Workspace(std::int64_t nbytes, Need need);
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  char* data() const { return data_; }  // aligned to 64 bytes, undefined contents; null for 0 bytes
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  char* data_ = nullptr;
  std::int64_t capacity_ = 0;
};

}  // namespace tritium
