"""Import rules of recurrent layers: their steps one after the other, as a marker may begin a sequence anew in each."""
