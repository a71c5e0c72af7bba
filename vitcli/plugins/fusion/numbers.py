from vitcli.core.metric import percent

image_accuracy = percent(name="image_accuracy", label="accuracy with the image alone")
sound_accuracy = percent(name="sound_accuracy", label="accuracy with the sound alone")
