"""Small language models as controllers: supervised fine-tuning on targets, then reinforcement learning on replays."""
