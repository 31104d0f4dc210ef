"""chatglm.cpp's files."""
