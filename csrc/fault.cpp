// The fault of each thread.
// Knows nothing of who sets it or asks for it.
#include "fault.h"

namespace tritium {
namespace {

thread_local Fault pending;

}  // namespace

void set_fault(const Fault& fault) { pending = fault; }

bool has_fault() { return pending.kind != Faulty::nothing; }

Fault take_fault() {
  const Fault found = pending;
  pending = {};
  return found;
}

}  // namespace tritium
