// Reads a tape from Python: tuples in, checked once, immutable from then on.
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "built.h"
#include "tape_object.h"

// Any copy of the kernels: all refuse the same.
namespace tritium::TRITIUM_FIRST {
const char* tape_refusal(const Tape& tape);
}

namespace tritium::python {
namespace {

PyTypeObject* tape_type = nullptr;

struct TapeObject {
  PyObject_HEAD
  Tape tape;
  std::vector<TapeOperand> operands;
  std::vector<TapeInstruction> instructions;
  std::vector<TapePart> parts;
};

TapeObject* as_tape(PyObject* self) { return reinterpret_cast<TapeObject*>(self); }

bool copy_name(const char* name, char* to) {
  if (std::strlen(name) >= kTapeNames) {
    PyErr_Format(PyExc_ValueError, "Tape: the name %.100s is too long.", name);
    return false;
  }
  std::strcpy(to, name);
  return true;
}

bool in_range(int value, int end, const char* what) {
  if (value >= 0 && value < end) return true;
  PyErr_Format(PyExc_ValueError, "Tape: %s %d does not exist.", what, value);
  return false;
}

// (place, reach, dtype, bits)
bool read_operand(PyObject* given, TapeOperand& to) {
  int place, reach, dtype;
  unsigned long long bits;
  if (!PyArg_ParseTuple(given, "iiiK", &place, &reach, &dtype, &bits)) return false;
  if (!in_range(place, 6, "the place") || !in_range(reach, 3, "the reach") || !in_range(dtype, kDTypes, "the dtype"))
    return false;
  to = {static_cast<Place>(place), static_cast<Reach>(reach), static_cast<DType>(dtype), bits};
  return true;
}

// (name, dtype, reversed, x, y)
bool read_instruction(PyObject* given, TapeInstruction& to) {
  const char* name;
  int dtype, reversed;
  if (!PyArg_ParseTuple(given, "sipii", &name, &dtype, &reversed, &to.x, &to.y)) return false;
  if (!in_range(dtype, kDTypes, "the dtype")) return false;
  to.dtype = static_cast<DType>(dtype);
  to.reversed = reversed != 0;
  return copy_name(name, to.name);
}

// (kind, first, count, name, six operands, dtype, eps)
bool read_part(PyObject* given, TapePart& to) {
  const char* name;
  int kind, dtype;
  int* const o = to.operand;
  if (!PyArg_ParseTuple(given, "iiis(iiiiii)id", &kind, &to.first, &to.count, &name, o, o + 1, o + 2, o + 3, o + 4,
                        o + 5, &dtype, &to.eps))
    return false;
  if (!in_range(kind, 3, "the kind") || !in_range(dtype, kDTypes, "the dtype")) return false;
  to.kind = static_cast<PartKind>(kind);
  to.dtype = static_cast<DType>(dtype);
  return copy_name(name, to.name);
}

template <class T>
bool read_all(PyObject* given, std::vector<T>& to, bool (*read)(PyObject*, T&)) {
  if (!PyList_Check(given)) {
    PyErr_Format(PyExc_TypeError, "Tape: a list is needed, given %.100s.", Py_TYPE(given)->tp_name);
    return false;
  }
  to.resize(static_cast<std::size_t>(PyList_GET_SIZE(given)));
  for (std::size_t i = 0; i < to.size(); ++i)
    if (!read(PyList_GET_ITEM(given, static_cast<Py_ssize_t>(i)), to[i])) return false;
  return true;
}

// The operands in their order: scratch memory, inputs, outputs, the rest.
bool settle(TapeObject* self) {
  Tape& tape = self->tape;
  tape.operand = self->operands.data();
  tape.instruction = self->instructions.data();
  tape.part = self->parts.data();
  tape.operands = static_cast<int>(self->operands.size());
  tape.instructions = static_cast<int>(self->instructions.size());
  tape.parts = static_cast<int>(self->parts.size());
  bool ordered = tape.operands > 0 && tape.operand[0].place == Place::scratch;
  for (int i = 1; i < tape.operands; ++i) {
    const Place place = tape.operand[i].place;
    ordered = ordered && place != Place::scratch && place >= tape.operand[i - 1].place;
    tape.inputs += place == Place::input;
    tape.outputs += place == Place::output;
  }
  const bool fits = tape.inputs <= kMaxInputs && tape.outputs >= 1 && tape.outputs <= kMaxOutputs;
  const char* why = !ordered ? "its operands are out of order" : !fits ? "it has too many inputs or outputs" : nullptr;
  if (!why) why = TRITIUM_FIRST::tape_refusal(tape);
  if (why) PyErr_Format(PyExc_ValueError, "Tape: it cannot run: %s.", why);
  return !why;
}

PyObject* tape_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *operands, *instructions, *parts;
  int lane, rows;
  if (!PyArg_ParseTuple(args, "ipOOO", &lane, &rows, &operands, &instructions, &parts)) return nullptr;
  if (lane != static_cast<int>(DType::f32) && lane != static_cast<int>(DType::f64))
    return PyErr_Format(PyExc_ValueError, "Tape: lanes are f32 or f64.");
  TapeObject* self = as_tape(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  new (&self->tape) Tape();
  new (&self->operands) std::vector<TapeOperand>();
  new (&self->instructions) std::vector<TapeInstruction>();
  new (&self->parts) std::vector<TapePart>();
  self->tape.lane = static_cast<DType>(lane);
  self->tape.rows = rows != 0;
  if (read_all(operands, self->operands, read_operand) &&
      read_all(instructions, self->instructions, read_instruction) && read_all(parts, self->parts, read_part) &&
      settle(self))
    return reinterpret_cast<PyObject*>(self);
  Py_DECREF(self);
  return nullptr;
}

void tape_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  TapeObject* t = as_tape(self);
  for (void* bound : t->tape.bound) std::free(bound);
  t->operands.~vector();
  t->instructions.~vector();
  t->parts.~vector();
  type->tp_free(self);
  Py_DECREF(type);
}

PyType_Slot tape_slots[] = {
    {Py_tp_doc, const_cast<char*>("Tape(lane, rows, operands, instructions, parts): what a fused row computes.")},
    {Py_tp_new, reinterpret_cast<void*>(tape_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(tape_dealloc)},
    {0, nullptr}};

PyType_Spec tape_spec = {"tritium._native.Tape", sizeof(TapeObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
                         tape_slots};

}  // namespace

PyTypeObject* make_tape_type() {
  return tape_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&tape_spec));
}

const Tape* tape_of_object(PyObject* o) { return Py_TYPE(o) == tape_type ? &as_tape(o)->tape : nullptr; }

}  // namespace tritium::python
