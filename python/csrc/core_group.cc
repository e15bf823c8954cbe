// The Python class Group: joining, members, sub-groups, and re-forming. The collectives of a Group are in core_collectives.cc.
#include "core.h"

namespace unisono_python {

namespace {

constexpr const char* capsule_name = "unisono.Group";

template <typename F>
auto released(F function) {
  const py::gil_scoped_release no_gil;
  return function();
}

Group join(const py::kwargs& words) {
  return interruptibly([options = join_options(words)] { return Group::join(options); });
}

std::string text_of(const Group& group) {
  return "rank " + std::to_string(group.rank()) + " of " + std::to_string(group.world_size()) + ", epoch " +
         std::to_string(group.epoch());
}

Group from_capsule(const py::capsule& capsule) {
  const auto* group = static_cast<const Group*>(PyCapsule_GetPointer(capsule.ptr(), capsule_name));
  if (group == nullptr) throw py::error_already_set();
  return *group;
}

py::capsule to_capsule(const Group& group) {
  return py::capsule(new Group(group), capsule_name, [](PyObject* capsule) {
    DeleteReleased()(static_cast<Group*>(PyCapsule_GetPointer(capsule, capsule_name)));
  });
}

}  // namespace

void add_group(py::module_& m) {
  GroupClass group(m, "Group",
                   "Processes that compute collectives together. A cheap handle; dropping the last one of the joined group "
                   "closes its links. Any thread may start and wait for operations.");
  group.def_property_readonly("rank", &Group::rank);
  group.def_property_readonly("world_size", &Group::world_size);
  group.def_property_readonly("epoch", &Group::epoch);
  group.def(
      "members", [](const Group& self) { return released([&] { return self.members(); }); },
      "By rank; empty once the group has ended.");
  group.def("link_speeds", [](const Group& self) { return released([&] { return self.link_speeds(); }); });
  group.def(
      "counters", [](const Group& self) { return released([&] { return self.counters(); }); },
      "Counters of this group on this rank. Empty if it keeps no record.");
  group.def(
      "dump_record",
      [](const Group& self, const std::string& path) { check(released([&] { return self.dump_record(path); })); },
      py::arg("path"),
      "Writes the group's record to a file for `unisono explain` and `unisono trace`, replacing the file. Unavailable: there "
      "is no record, or the file cannot be written.");
  group.def(
      "datagram_bytes", [](const Group& self) { return released([&] { return self.datagram_bytes(); }); },
      "Bytes of a full datagram between all members, header included; 0: no call can be lossy.");
  group.def(
      "split", [](Group& self, const std::vector<uint32_t>& ranks) { return without_gil([&] { return self.split(ranks); }); },
      py::arg("ranks"),
      "Makes a group of some of this group's ranks, numbered in the given order. Its members call it with the same list; it "
      "sends nothing. It ends when the parent is re-formed.");
  group.def(
      "reform", [](Group& self) { return interruptibly([group = self]() mutable { return group.reform(); }); },
      "After PeerLost or Late: the living ranks agree on the survivors, admit processes that wait to join, and continue with "
      "new ranks. All living ranks call it. Operations in flight end with PeerLost.");
  group.def("__repr__", [](const Group& self) { return "<unisono.Group: " + text_of(self) + ">"; });
  add_collectives(group);
  m.def("join", join,
        "Meets the other ranks; returns when all links are up.\n\nOptions not given come from the environment "
        "(docs/guides/operations.md), such as RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT.\nOptions: see unisono.JoinOptions. "
        "Errors: Late names the missing ranks and the attempts made; Unavailable, Invalid.");
  m.def("group_from_capsule", from_capsule, py::arg("capsule"),
        "The group in a PyCapsule \"unisono.Group\", which holds a unisono::Group*; the group is copied.");
  m.def("group_to_capsule", to_capsule, py::arg("group"),
        "A PyCapsule of this group, for extension modules that link the same library.");
}

}  // namespace unisono_python
