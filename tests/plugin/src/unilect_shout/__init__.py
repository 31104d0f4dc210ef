"""A backend and a dialect for unilect that know each other as little as those of unilect do."""
