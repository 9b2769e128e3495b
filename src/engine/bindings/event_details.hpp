// The lists and texts of an event for a second look, made when a program asks for them.
#pragma once

#include <unordered_map>

#include "bindings/document_plan.hpp"

namespace hitbox {

class DocumentPlan::EventDetails final : public Details {
 public:
  // Of the event that `documents` shows. Python's lock is held while it is asked.
  EventDetails(const DocumentPlan& plan, document::Documents& documents, i64 time)
      : plan_(plan), documents_(documents) {
    now = time;
  }

  Elements list(u32 attribute) const override;
  Text text(u32 attribute) const override;

 private:
  struct List {
    Given given = Given::NO;
    std::vector<i64> keys;
    Elements elements() const { return {given, keys.data(), keys.size()}; }
  };
  const DocumentPlan& plan_;
  document::Documents& documents_;
  mutable std::unordered_map<u32, List> lists_;
  mutable std::unordered_map<u32, Text> texts_;
};

}  // namespace hitbox
