# SPDX-License-Identifier: Apache-2.0
"""Training with Accelerate on points that are cut among ranks: torchrun --nproc-per-node 2 accelerate_training.py

Accelerate finds the processes and keeps mixed precision, accumulation, clipping and checkpoints. It must not wrap the model in DDP, whose average of gradients is
for ranks with different cases; `meshard.replicate` adds up those of one case."""
import accelerate
import meshard
import torch


def main():
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    mesh = meshard.init_device_mesh()
    torch.manual_seed(0)
    model = meshard.models.Transolver(functional_dim=3, embedding_dim=3, out_dim=1, n_layers=2, n_hidden=32, n_head=4)
    meshard.replicate(model, mesh)
    accelerator.register_for_checkpointing(model)   # else save_state has the optimiser alone
    optimizer = accelerator.prepare(torch.optim.AdamW(model.parameters(), 1e-3))
    for step in range(16):
        whole = torch.rand(1, 300, 3, generator=torch.Generator().manual_seed(step % 8))
        points = meshard.distribute_tensor(whole, mesh, [meshard.Shard(1)])
        with accelerator.accumulate(model):
            with accelerator.autocast():
                loss = torch.nn.functional.mse_loss(model(points, points), points.square().sum(-1, keepdim=True))
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    print(f"rank {mesh.get_rank()}: loss {loss.item():.6f}", flush=True)
    accelerator.save_state("trained")
    accelerator.end_training()


if __name__ == "__main__":
    main()
