// The lists and texts of an event for a second look, made when a program asks for them.
#pragma once

#include <memory>
#include <vector>

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
  struct Known {
    u32 attribute;
    Text text;
    Given given;  // of a list
    std::vector<i64> keys;
    Elements elements() const { return {given, keys.data(), keys.size()}; }
  };

  // What is known of an attribute; `fresh` if that is nothing yet. Few attributes are asked for, many times.
  Known& known(u32 attribute, bool& fresh) const {
    for (const auto& one : known_)
      if (one->attribute == attribute) return fresh = false, *one;
    fresh = true;
    known_.push_back(std::make_unique<Known>(Known{attribute, {}, Given::NO, {}}));
    return *known_.back();
  }

  const DocumentPlan& plan_;
  document::Documents& documents_;
  mutable std::vector<std::unique_ptr<Known>> known_;
};

}  // namespace hitbox
